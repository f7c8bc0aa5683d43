"""The formats of what is shipped: manifests, CUBIN headers, bundles and signatures. Bytes in, checked values out, and back.

Compiler, packer and runtime share these files, so none of them imports a compiler package.
"""
