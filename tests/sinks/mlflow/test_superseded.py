import random

from trieye.sinks.mlflow.sink import SupersededPoints
from trieye.stats.point import Point


def remembering(*points, **options):
    memory = SupersededPoints(**options)
    memory.add(points)
    return memory


def test_equal_points_are_left_out_whenever_they_were_made():
    memory = remembering(Point("loss", 0.5, 3, 1.7e9), Point("return", 1.0, 3, 1.7e9))
    again = [Point("loss", 0.5, 3, 1.8e9, ("console",), 7), Point("return", 1.0, 3, 1.8e9)]
    assert memory.without(again) == []


def test_a_point_that_differs_in_name_step_or_value_is_new():
    memory = remembering(Point("loss", -1.0, -1, 1.7e9))
    # -1 and -2 have the same hash in Python
    new = [
        Point("los", -1.0, -1, 1.7e9),
        Point("loss", -2.0, -1, 1.7e9),
        Point("loss", -1.0, -2, 1.7e9),
        Point("loss", -1.0 + 1e-15, -1, 1.7e9),
        Point("loss", 1.0, -1, 1.7e9),
    ]
    assert memory.without([*new, Point("loss", -1.0, -1, 1.7e9)]) == new


def test_zero_has_no_sign():
    assert remembering(Point("loss", 0.0, 1, 1.7e9)).without([Point("loss", -0.0, 1, 1.7e9)]) == []


def test_nothing_remembered_leaves_everything():
    points = [Point("loss", 0.5, 3, 1.7e9)]
    assert remembering().without(points) == points
    assert remembering(*points).without([]) == []


def test_several_rewinds_add_up():
    points = [Point("loss", float(step), step, 1.7e9) for step in range(30)]
    memory = remembering(*points[:10])
    memory.add(iter(points[10:20]))
    assert memory.without(points) == points[20:]


def test_of_too_many_the_oldest_are_forgotten():
    points = [Point("loss", float(step), step, 1.7e9) for step in range(300)]
    memory = remembering(*points[:150], limit=100)
    memory.add(points[150:200])
    assert memory.without(points) == [*points[:100], *points[200:]]


def test_points_that_are_remembered_already_push_out_no_others():
    points = [Point("loss", float(step), step, 1.7e9) for step in range(100)]
    memory = remembering(*points, limit=100)
    for _ in range(3):
        memory.add(points[50:])
    assert memory.without(points) == []


def test_points_that_no_backend_takes_pass():
    odd = [Point("loss", 1.0, 2**63, 1.7e9), Point("loss", "text", 1, 1.7e9), Point("loss", None, 1, 1.7e9)]
    assert remembering(*odd, Point("a", 1.0, 1, 1.7e9)).without(odd) == odd


def test_many_points_of_many_metrics_are_told_apart():
    seed = random.randrange(2**32)
    rng = random.Random(seed)
    points = [Point(f"m/é{rng.randrange(50)}", rng.random(), rng.randrange(-(2**63), 2**63), 0.0) for _ in range(9000)]
    memory = remembering(*points[:4000])
    mixed = rng.sample(points, len(points))
    shown = {id(point) for point in points[:4000]}
    assert memory.without(mixed) == [point for point in mixed if id(point) not in shown], seed
