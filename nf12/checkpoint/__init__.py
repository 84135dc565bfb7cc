"""Checkpoints: dense safetensors to packed ones and back, tensor by tensor.

source.py    what is read: folder, file or cached hub id; every header and index checked
header.py    the safetensors header
plan.py      which tensors are packed, tied copies, collisions, shards
staging.py   writing: journal, resuming, one rename at the end
target.py    what convert and unpack share: index, other files
convert.py   verify.py   unpack.py   inspect.py   load.py      one job each
"""

from nf12.checkpoint.convert import ConvertReport, TensorReport, convert
from nf12.checkpoint.errors import CheckpointError
from nf12.checkpoint.inspect import InspectReport, WeightStats, inspect
from nf12.checkpoint.load import load_file
from nf12.checkpoint.progress import Progress
from nf12.checkpoint.source import Checkpoint, open_checkpoint
from nf12.checkpoint.unpack import UnpackReport, unpack
from nf12.checkpoint.verify import Difference, VerifyReport, verify

__all__ = [
    "Checkpoint",
    "CheckpointError",
    "ConvertReport",
    "Difference",
    "InspectReport",
    "Progress",
    "TensorReport",
    "UnpackReport",
    "VerifyReport",
    "WeightStats",
    "convert",
    "inspect",
    "load_file",
    "open_checkpoint",
    "unpack",
    "verify",
]
