"""For tests of renderers, with the extra `test`: tokenizers of the families, conversations of hypothesis."""
