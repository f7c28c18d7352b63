from trieye.hub.actor import TrieyeActor
from trieye.hub.ledger import Ledger
from trieye.hub.logic import ActorLogic
from trieye.hub.requests import requests_of
from trieye.hub.status import HubStatus
from trieye.hub.tracking import Tracking

PARTS = (ActorLogic, Ledger, Tracking, HubStatus)


def test_each_request_is_one_of_one_part_and_a_method_of_the_actor():
    names = [{method.__name__ for method, _ in requests_of(part)} for part in PARTS]
    assert sum(map(len, names)) == len(set.union(*names))
    assert set.union(*names) <= set(dir(TrieyeActor.__ray_metadata__.modified_class))


def test_ray_runs_each_request_on_its_own_threads_and_sends_events_plainly():
    meta = TrieyeActor.__ray_metadata__.method_meta
    groups = {method.__name__: group for part in PARTS for method, group in requests_of(part) if group}
    assert groups.items() <= meta.concurrency_group_for_methods.items()
    assert {"log_event", "log_batch_events", "save_training_state"} == set(meta.decorators)
