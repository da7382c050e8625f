"""Code that runs in SGLang's own workers, under SGLang's interpreter; the rest of the plugin does not import it."""
