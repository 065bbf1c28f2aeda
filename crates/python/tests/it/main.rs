//! What of the Python package can be tested without Python.

mod safetensors_header;
