"""The APIs that agents speak, one module for each: its requests to what is asked, what is answered to its words."""
