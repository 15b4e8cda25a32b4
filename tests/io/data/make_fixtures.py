"""Makes the safetensors files beside it with the format's own library: pip install safetensors==0.8.0.

The bytes of the tensors are chosen here, so that the tests know them: no number is converted.
"""
import ctypes
import pathlib
import struct

from safetensors import TensorSpec, serialize_file

here = pathlib.Path(__file__).parent
buffers = []  # kept alive until the files are written


def tensor(dtype, shape, form, values):
    data = struct.pack(f"<{len(values)}{form}", *values)
    buffers.append(ctypes.create_string_buffer(data, max(1, len(data))))
    return TensorSpec(dtype=dtype, shape=shape, data_ptr=ctypes.addressof(buffers[-1]), data_len=len(data))


serialize_file(
    {
        "layers.1.bias": tensor("float32", [2], "f", [-1.5, 0.1]),
        "layers.0.weight": tensor("float32", [2, 3], "f", [1, 2, 3, -4, 5e-45, 3.4028234663852886e38]),
        "größe": tensor("float32", [], "f", [0.25]),
        "empty": tensor("float32", [0, 3], "f", []),
    },
    str(here / "python_f32.safetensors"),
    {"format": "pt", "note": 'a "quoted" \n value'},
)
serialize_file(
    {"w": tensor("bfloat16", [3], "H", [0x3F80, 0xC049, 0x0001])},
    str(here / "python_bf16.safetensors"),
)
serialize_file(
    {"w": tensor("float64", [2], "d", [0.1, -2.5])},
    str(here / "python_f64.safetensors"),
)
