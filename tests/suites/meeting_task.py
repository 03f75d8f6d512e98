"""A distributed task: its processes gather their ranks, and the first writes them down.

python meeting_task.py RESULTS [TENTHS OF A SECOND BEFORE]
"""

import sys
import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
ranks = [torch.zeros(1, dtype=torch.int64) for _ in range(dist.get_world_size())]
dist.all_gather(ranks, torch.tensor([dist.get_rank()]))
for _ in range(int(*sys.argv[2:3])):
    dist.barrier()
    time.sleep(0.1)
if dist.get_rank() == 0:
    with open(sys.argv[1], "a", encoding="utf-8") as stream:
        stream.write("".join(str(int(rank)) for rank in ranks) + "\n")
dist.destroy_process_group()
