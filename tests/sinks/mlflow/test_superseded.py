import random

from trieye.sinks.mlflow.sink import SupersededPoints
from trieye.stats.point import Point


def superseded_points(*points, **options):
    memory = SupersededPoints(**options)
    memory.add(points)
    return memory


def test_equal_points_are_omitted_regardless_of_their_time_and_the_sign_of_zero():
    memory = superseded_points(Point("loss", 0.0, 3, 1.7e9), Point("return", 1.0, 3, 1.7e9))
    repeated = [Point("loss", -0.0, 3, 1.8e9, ("console",), 7), Point("return", 1.0, 3, 1.8e9)]
    assert memory.without(repeated) == []


def test_a_point_that_differs_in_name_step_or_value_is_new():
    memory = superseded_points(Point("loss", -1.0, -1, 1.7e9))
    # -1 and -2 have the same hash in Python
    new = [
        Point("los", -1.0, -1, 1.7e9),
        Point("loss", -2.0, -1, 1.7e9),
        Point("loss", -1.0, -2, 1.7e9),
        Point("loss", -1.0 + 1e-15, -1, 1.7e9),
        Point("loss", 1.0, -1, 1.7e9),
    ]
    assert memory.without([*new, Point("loss", -1.0, -1, 1.7e9)]) == new


def test_the_oldest_points_beyond_the_limit_are_forgotten():
    points = [Point("loss", float(step), step, 1.7e9) for step in range(300)]
    memory = superseded_points(*points[:150], limit=100)
    memory.add(points[150:200])
    assert memory.without(points) == [*points[:100], *points[200:]]


def test_already_remembered_points_evict_no_others():
    points = [Point("loss", float(step), step, 1.7e9) for step in range(100)]
    memory = superseded_points(*points, limit=100)
    for _ in range(3):
        memory.add(points[50:])
    assert memory.without(points) == []


def test_many_points_of_many_metrics_are_distinguished():
    seed = random.randrange(2**32)
    rng = random.Random(seed)
    points = [Point(f"m/é{rng.randrange(50)}", rng.random(), rng.randrange(-(2**63), 2**63), 0.0) for _ in range(9000)]
    memory = superseded_points(*points[:4000])
    mixed = rng.sample(points, len(points))
    shown = {id(point) for point in points[:4000]}
    assert memory.without(mixed) == [point for point in mixed if id(point) not in shown], seed
