import pytest

from momentum_transfer.core.errors import InputError
from momentum_transfer.images import taxonomies
from momentum_transfer.images.subsets import read_taxonomy

#: entity -> {animal -> {dog -> {pug, beagle}, cat -> {tabby, siamese}, bird}, thing -> {tool -> {saw, axe}}}
LINES = """
entity animal   # a comment
entity thing
animal dog
animal cat
animal bird
dog pug
dog beagle
cat tabby
cat siamese
thing tool
tool saw
tool axe
toy saw
"""
CLASSES = ["pug", "beagle", "tabby", "siamese", "bird", "saw", "axe"]


@pytest.fixture
def parents(tmp_path):
    path = tmp_path / "is_a.txt"
    path.write_text(LINES, encoding="utf-8")
    return taxonomies.read_hierarchy(path)


def test_rounds_cluster_what_lies_under_one_concept_from_the_leaves_up(parents):
    found = taxonomies.rounds(CLASSES, parents)
    clusters = [sorted(set(mapping.values())) for mapping in found]
    assert clusters[0] == sorted(CLASSES)
    assert clusters[1] == ["bird", "cat", "dog", "tool"]
    assert clusters[2] == ["animal", "thing"]
    assert clusters[-1] == ["entity"]
    counts = [len(names) for names in clusters]
    assert counts == sorted(set(counts), reverse=True)
    for mapping in found:  # every class is under its cluster
        assert all(cluster in taxonomies._trail(name, parents) for name, cluster in mapping.items())


def test_a_count_is_one_of_the_rounds_and_others_are_refused_with_the_list(parents):
    assert len(set(taxonomies.of_count(CLASSES, parents, 4).values())) == 4
    with pytest.raises(InputError, match=r"\(1, 2, 4, 7\), found 3"):
        taxonomies.of_count(CLASSES, parents, 3)


def test_a_cut_at_a_concept_leaves_it_and_the_rest(parents):
    mapping = taxonomies.under(CLASSES, parents, ["thing"])
    assert {name for name, cluster in mapping.items() if cluster == "thing"} == {"saw", "axe"}
    assert {mapping[name] for name in CLASSES[:5]} == {"other"}
    with pytest.raises(InputError, match="none below toy"):
        taxonomies.under(CLASSES, parents, ["toy"])


def test_what_is_written_is_what_data_taxonomy_reads(parents, tmp_path):
    mapping = taxonomies.of_count(CLASSES, parents, 4)
    taxonomies.write_mapping(tmp_path / "four.txt", mapping, "four")
    numbers, names = read_taxonomy(tmp_path / "four.txt", CLASSES)
    assert [names[number] for number in numbers] == [mapping[name] for name in CLASSES]


@pytest.mark.parametrize(
    ("text", "message"),
    [("a b c", "line 1: expected `parent child`"), ("a a", "line 1"), ("a b\nb c\nc a", "its own ancestor")],
)
def test_a_file_that_is_no_hierarchy_is_refused(text, message, tmp_path):
    (tmp_path / "h.txt").write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=message):
        taxonomies.read_hierarchy(tmp_path / "h.txt")
    with pytest.raises(InputError, match="found no file"):
        taxonomies.read_hierarchy(tmp_path / "no.txt")


def test_classes_that_the_hierarchy_lacks_are_named(parents):
    with pytest.raises(InputError, match="1 of 2 missing, the first cow"):
        taxonomies.rounds(["pug", "cow"], parents)
    with pytest.raises(InputError, match="found none"):
        taxonomies.rounds([], parents)
