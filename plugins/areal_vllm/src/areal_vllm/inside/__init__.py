"""Code that runs in vLLM's own workers, under vLLM's interpreter; the rest of the plugin does not import it."""
