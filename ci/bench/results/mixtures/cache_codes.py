"""sweep.py FOLDER: time c8 variants and the 16-bit kernel."""
import sys, math, json
from pathlib import Path
from functools import partial
import torch
from ci.bench.kernels.launch import Bench, find_artifacts
from ci.bench.kernels import cases
from ci.bench.kernels.clock import measure
bench=Bench(); arch=bench.device.architecture
root=Path(sys.argv[1]); names=sorted(p.name for p in root.iterdir())
entries={n: find_artifacts([root/n/"artifacts"],arch)[0][0] for n in names}
wide=[e for e in find_artifacts([Path("/tmp/tree/artifacts/build/sm_90a")],arch)[0] if e.manifest.kernel=="rotary_decode_attention" and e.manifest.constants["G"]==4 and e.manifest.constants["E"]=="bf16"][0]
wrong={}
for n,e in entries.items():
    for dims in list(cases.checked_sizes(e.manifest))[:4]:
        try:
            r=cases.launched(bench,e,cases.make_tensors(e.manifest,dims,"cuda"))
            if not all(c.ok if hasattr(c,"ok") else True for c in r): wrong[n]=str(dims)
            if n==names[0] and dims: print(n,dims,[c for c in r][:1])
        except Exception as x: wrong[n]=f"{dims} {x}"[:200]
print("wrong",wrong,flush=True)
out=[]
for filled in (2048,8192,32768):
    for P in (33,44,66):
        S=filled+128
        runs={}
        for n,e in [("wide",wide),*entries.items()]:
            per=8*256*S*(2 if n=="wide" else 1)
            sets=[]
            for _ in range(max(2,min(36,int(200e6/per)+2))):
                t=cases.make_tensors(e.manifest,{"B":1,"HKV":8,"S":S,"P":P,"R":S+77},"cuda")
                t["lengths"].fill_(filled); t["positions"].fill_(filled-1)
                sets.append(t)
            plans=[bench.plan(e,t) for t in sets]
            runs[n]=[partial(p.launch,bench.stream() ,overlap=False) for p in plans]
            runs[n]=[(lambda p=p: p.launch(bench.stream(),overlap=False)) for p in plans]
        times=measure(runs,20.0)
        row={n:round(t.median,2) for n,t in times.items()}
        out.append((filled,P,row)); print(filled,P,{n:f"{v} ({v/row['wide']:.2f})" for n,v in row.items()},flush=True)
        del runs,plans,sets; torch.cuda.empty_cache()
json.dump(out,open(sys.argv[2],"w"))
