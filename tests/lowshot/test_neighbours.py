import numpy as np
import pytest
from sklearn.neighbors import NearestNeighbors

from lowshot.feature_set import normalized
from lowshot.neighbours import search
from pretrain.errors import InputError

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


def test_database_on_disk_gives_the_same(tmp_path):
    np.save(tmp_path / "database.npy", DATABASE)
    mapped = np.load(tmp_path / "database.npy", mmap_mode="r")
    assert np.array_equal(search(mapped, QUERIES, 5, database_chunk=100).indices, search(DATABASE, QUERIES, 5).indices)


@pytest.mark.parametrize("k", [0, 502])
def test_k_outside_the_database_is_refused(k):
    with pytest.raises(InputError, match=r"expected 1 ≤ k ≤ 501"):
        search(DATABASE, QUERIES, k)


def test_other_dimension_is_refused():
    with pytest.raises(InputError, match="queries have 3 features, the database 24"):
        search(DATABASE, QUERIES[:, :3], 1)
