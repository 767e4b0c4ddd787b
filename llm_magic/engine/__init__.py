"""The inference engine: ids in, ids out.

The only package that imports tinygrad, tokenizers and gguf. It knows token ids, KV slots and
logits; it must not know roles, templates, notebooks or networks.
"""
