import numpy as np
import pytest
from sklearn.neighbors import NearestNeighbors

from momentum_transfer.core.errors import InputError
from momentum_transfer.core.neighbours import Neighbours, majority_top1, normalized, ranked_classes, search

DATABASE = np.random.default_rng(0).standard_normal((501, 24)).astype(np.float32)
QUERIES = np.random.default_rng(1).standard_normal((67, 24)).astype(np.float32)


@pytest.mark.parametrize("k", [1, 20, 501])
@pytest.mark.parametrize(("query_chunk", "database_chunk"), [(1024, 4096), (10, 33), (67, 501), (1, 100)])
def test_neighbours_equal_brute_force_whatever_the_chunks(k, query_chunk, database_chunk):
    found = search(DATABASE, QUERIES, k, query_chunk=query_chunk, database_chunk=database_chunk)
    similarities = normalized(QUERIES).astype(float) @ normalized(DATABASE).astype(float).T
    expected = np.argsort(-similarities, axis=1)[:, :k]
    assert np.array_equal(found.indices, expected)
    assert np.allclose(found.similarities, np.take_along_axis(similarities, expected, 1), atol=1e-6)


def test_neighbours_equal_scikit_learns():
    expected = NearestNeighbors(n_neighbors=30, metric="cosine", algorithm="brute").fit(DATABASE)
    found = search(DATABASE, QUERIES, 30)
    assert np.array_equal(found.indices, expected.kneighbors(QUERIES, return_distance=False))


def test_neighbours_equal_those_of_faiss_flat():
    faiss = pytest.importorskip("faiss", reason="faiss is not installed (pip install faiss-cpu)")
    index = faiss.IndexFlatIP(24)
    index.add(normalized(DATABASE))
    similarities, rows = index.search(normalized(QUERIES), 30)
    found = search(DATABASE, QUERIES, 30)
    assert np.array_equal(found.indices, rows)
    assert np.allclose(found.similarities, similarities, atol=1e-6)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("database_chunk", [7, 100, 4096])
def test_of_equally_similar_images_the_earlier_is_nearer(precision, database_chunk):
    rng = np.random.default_rng(2)
    database = rng.integers(0, 2, (400, 3)).astype(np.float32)  # eight vectors, again and again
    queries = rng.integers(0, 2, (30, 3)).astype(np.float32)
    found = search(database, queries, 60, precision=precision, query_chunk=11, database_chunk=database_chunk)
    similarities = np.round(normalized(queries).astype(float) @ normalized(database).astype(float).T, 6)
    assert np.array_equal(found.indices, np.argsort(-similarities, axis=1, kind="stable")[:, :60])


def test_classes_with_equal_votes_and_equal_sums_are_ranked_by_their_number():
    similarities = np.array([[0.5, 0.5, 0.25, 0.25, 0.125]], np.float32)
    found = Neighbours(similarities, np.array([[0, 1, 2, 3, 4]]))
    for temperature in (None, 0.07):
        assert ranked_classes(found, np.array([6, 2, 2, 6, 4]), 5, temperature).tolist() == [[2, 6, 4, -1, -1]]


def test_majority_vote_equals_scikit_learns():
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(4, 6))
    labels, targets = rng.integers(4, size=300), rng.integers(4, size=1500)
    bank, queries = centres[labels] + rng.normal(size=(300, 6)), centres[targets] + rng.normal(size=(1500, 6))
    found = NearestNeighbors(n_neighbors=5, metric="cosine", algorithm="brute").fit(bank).kneighbors(queries)
    expected = []
    for distances, rows in zip(*found, strict=True):
        votes = {c: (np.sum(labels[rows] == c), np.sum((1 - distances)[labels[rows] == c]), -c) for c in range(4)}
        expected.append(max(votes, key=votes.get))
    score = majority_top1(bank, labels, queries, targets, k=5)
    assert score == pytest.approx(100 * np.mean(np.array(expected) == targets))
    assert 40 < score < 100


def test_more_neighbours_than_images_take_them_all():
    bank = np.random.default_rng(0).normal(size=(3, 4))
    assert majority_top1(bank, np.array([1, 1, 0]), bank, np.array([1, 1, 1]), k=20) == 100


def test_database_on_disk_gives_the_same(tmp_path):
    np.save(tmp_path / "database.npy", DATABASE)
    mapped = np.load(tmp_path / "database.npy", mmap_mode="r")
    assert np.array_equal(search(mapped, QUERIES, 5, database_chunk=100).indices, search(DATABASE, QUERIES, 5).indices)


@pytest.mark.parametrize("clustered", [False, True])
def test_bf16_search_finds_the_same_sets_with_fp32_similarities(clustered, capsys):
    generator = np.random.default_rng(3)
    database = generator.standard_normal((2000, 64)).astype(np.float32)
    if clustered:  # so many almost equal similarities that rounding alone cannot rank them
        database = database[:20].repeat(100, axis=0) + 1e-4 * database
    queries = generator.standard_normal((50, 64)).astype(np.float32)
    exact = search(database, queries, 30)
    fast = search(database, queries, 30, precision="bf16", database_chunk=300)
    assert np.allclose(exact.similarities, fast.similarities, atol=1e-6)
    agreeing = [len(set(one) & set(other)) for one, other in zip(exact.indices, fast.indices, strict=True)]
    assert np.mean(agreeing) >= 29.9  # what is left are ties in float32
    assert ("searched again" in capsys.readouterr().out) == clustered


def test_bf16_bound_counts_the_worst_block_and_not_the_last():
    """The last block is exact in bfloat16; what rounding may have hidden is in the ones before."""
    generator = np.random.default_rng(4)
    database = generator.standard_normal((20, 64)).repeat(50, axis=0) + 1e-4 * generator.standard_normal((1000, 64))
    database = np.vstack([database, np.eye(64).repeat(4, axis=0)]).astype(np.float32)
    queries = np.sign(generator.standard_normal((40, 64))).astype(np.float32)  # exact too, so they add no error
    exact, fast = (search(database, queries, 30, precision=name, database_chunk=250) for name in ("fp32", "bf16"))
    assert np.allclose(exact.similarities, fast.similarities, atol=1e-6)


def test_rows_of_zeros_and_duplicates_are_found_like_others():
    database = np.vstack([DATABASE[:50], DATABASE[:50], np.zeros((3, 24), np.float32)])
    found = search(database, QUERIES, 103, database_chunk=20)
    assert (np.sort(found.indices, axis=1) == np.arange(103)).all()
    assert (np.diff(found.similarities, axis=1) <= 0).all()


@pytest.mark.parametrize("k", [0, 502])
def test_k_outside_the_database_is_refused(k):
    with pytest.raises(InputError, match=r"expected 1 ≤ k ≤ 501"):
        search(DATABASE, QUERIES, k)


def test_other_dimension_is_refused():
    with pytest.raises(InputError, match="queries have 3 features, the database 24"):
        search(DATABASE, QUERIES[:, :3], 1)


def test_unknown_precision_is_refused():
    with pytest.raises(InputError, match=r"SEARCH\.PRECISION of fp32, bf16"):
        search(DATABASE, QUERIES, 1, precision="int8")


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_search_on_a_gpu_finds_what_the_cpu_finds(precision):
    found = search(DATABASE, QUERIES, 30, precision=precision, device="cuda", database_chunk=100)
    expected = search(DATABASE, QUERIES, 30)
    assert np.allclose(found.similarities, expected.similarities, atol=1e-5)
    assert np.mean(found.indices == expected.indices) > 0.99
