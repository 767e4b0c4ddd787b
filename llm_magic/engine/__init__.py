"""The inference engine: ids in, ids out.

The only package that imports tinygrad, tokenizers and gguf. It works with token ids, KV slots and
logits; roles, templates, notebooks and networks belong to the packages above.
"""
