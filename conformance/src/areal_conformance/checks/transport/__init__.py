"""What every weight transport must do: carry any bytes, say so, be all or nothing, leave nothing behind."""
