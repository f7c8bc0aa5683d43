"""sweep.py FOLDER OUT: times of schedules of decode kernels of 30B-A3B."""
import sys, json
from pathlib import Path
import torch
from ci.bench.kernels.launch import Bench, find_artifacts
from ci.bench.kernels import cases
from ci.bench.kernels.clock import measure
bench=Bench(); arch=bench.device.architecture
root=Path(sys.argv[1]); groups={}
for p in sorted(root.iterdir()):
    k,c,s=p.name.split("__"); groups.setdefault(k,{})[c+" "+s]=find_artifacts([p/"artifacts"],arch)[0][0]
X=128
DIMS={"scaled_matvec":{"N":5120,"K":2048},"matvec_argmax":{"V":151936,"K":2048,"P":660},"matvec_add_scaled":{"N":2048,"K":4096,"P":512},
"experts_silu_mul":{"T":1,"X":X,"I":768,"I2":1536,"K":2048},"experts_add_scaled":{"T":1,"X":X,"N":2048,"K":768,"P":512}}
BYTES={"scaled_matvec":21e6,"matvec_argmax":622e6,"matvec_add_scaled":16.8e6,"experts_silu_mul":50.3e6,"experts_add_scaled":25.2e6}
res={}
for k,es in groups.items():
    try:
        first=next(iter(es.values())); sets=[]
        if k.startswith("experts"):
            base=cases.make_tensors(first.manifest,DIMS[k],"cuda")
            for i in range(12):
                t=dict(base); t["experts"]=torch.tensor([[(i*11+16*j+j)%X for j in range(8)]],device="cuda",dtype=torch.int32); sets.append(t)
        else:
            for _ in range(2 if k=="matvec_argmax" else 12): sets.append(cases.make_tensors(first.manifest,DIMS[k],"cuda"))
        runs={}
        for n,e in es.items():
            try:
                plans=[bench.plan(e,t) for t in sets]
                runs[n]=[(lambda p=p: p.launch(bench.stream(),overlap=True)) for p in plans]
                runs[n][0](); bench.synchronize()
            except Exception as x:
                runs.pop(n,None); print(k,n,"FAILED",str(x)[:200],flush=True)
        times=measure(runs,15.0)
        for n,t in sorted(times.items(),key=lambda x:x[1].median): print(k,n,round(t.median,2),round(BYTES[k]/t.median/1e6,2),"TB/s",flush=True)
        res[k]={n:t.median for n,t in times.items()}
        del runs,sets; torch.cuda.empty_cache()
    except Exception as x: print(k,"GROUP FAILED",repr(x)[:300],flush=True)
json.dump(res,open(sys.argv[2],"w"))
