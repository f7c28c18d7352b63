"""Jobs get free resources of the machine, and none that another job occupies."""

from trieye.sweeps.slots import Slots


def test_whole_gpus_and_memory_are_assigned_to_one_job_at_a_time():
    slots = Slots(8.0, ["0", "1"], memory=100)
    job = slots.find({"num_gpus": 1, "memory": 60})
    assert (job.gpus, job.memory) == ({"0": 1.0}, 60)
    slots.take(job)
    assert slots.find({"num_gpus": 2}) is None
    assert slots.find({"memory": 60}) is None
    assert slots.find({"num_gpus": 1, "memory": 40}).gpus == {"1": 1.0}
    slots.release(job)
    assert slots.find({"num_gpus": 2, "memory": 100}).gpus == {"0": 1.0, "1": 1.0}


def test_a_share_of_a_gpu_goes_to_the_fullest_one_with_room():
    slots = Slots(8.0, ["0", "1"], memory=100)
    slots.take(slots.find({"num_gpus": 0.5}))
    assert slots.find({"num_gpus": 1}).gpus == {"1": 1.0}
    assert slots.find({"num_gpus": 0.5}).gpus == {"0": 0.5}
    assert slots.find({"num_gpus": 0.75}).gpus == {"1": 0.75}
