"""The one place that decides how many threads torch uses for the studies: one.

The tensors of a study are small; torch's thread pool costs more than it gives on them, and on a
machine shared by several sessions it costs up to fifty times more.
"""

import torch

torch.set_num_threads(1)
