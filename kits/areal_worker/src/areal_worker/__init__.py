"""What worker processes are made of: public, for authors of schedulers."""
