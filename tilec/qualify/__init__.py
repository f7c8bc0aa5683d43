"""Whether a bundle is right on this chip: launches of every artifact, compared with results in a side file.

`prepare` (anywhere with `tilec[audit]`, no GPU) takes a bundle and returns the launches of each artifact: `edges` of its
contract, and `model` shapes, which the bundle's own step gives. The tile interpreter computes what each must write, from the
tile IR that the bundle carries. `side_file` is the file that holds them, read strictly. `recipe` makes the contents of tensors,
the same on every machine. On the machine with the GPU, `session` starts processes (`child`) that go through the artifacts:
`arena` places tensors between guard zones, `trial` launches and repeats, `comparison` compares, `timing` times. `report`
combines the results in one document. `tune` times artifacts that can serve the same launch.

The target needs the base install alone: neither a compiler, nor ml_dtypes, nor torch.

Trusted: the bundle, as far as its digest or signature is; the driver. A side file is data: it names sizes, which the launch
contract of the bundle checks again, and states values to compare with. A wrong side file can make a right bundle look wrong, or
the reverse, but can make no launch outside of the contract.

Not seen: a tile IR that does not say what its author meant, since the expected results come from it; an error smaller than the
tolerance; elements of large results that were not sampled; launches that were not run.
"""
