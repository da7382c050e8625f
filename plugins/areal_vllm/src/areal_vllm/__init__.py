"""vLLM servers as an inference backend; `manifest` says what they can do, `engine` drives them."""
