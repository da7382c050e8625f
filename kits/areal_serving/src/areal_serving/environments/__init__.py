"""Engine environments: a Python environment per engine and device, apart from the trainer's.

vLLM, SGLang and the trainer pin different builds of torch, so an engine's server runs under an
interpreter of its own. `recipe` says what goes in, `build` makes it, `lookup` finds it.
"""
