"""The benchmark of large verdicts: the second file is the first without every tenth entry, block by block."""

import json

from benchmarks import largest_verdict


def test_the_second_file_lacks_every_tenth_entry_wherever_a_block_ends(tmp_path, monkeypatch):
    results = [{"image_id": n, "bbox": [0, n, 2.5, 3], "score": 0.5} for n in range(25)]
    (tmp_path / "results.json").write_text(json.dumps(results))
    for block in (1, 7, 1 << 20):
        monkeypatch.setattr(largest_verdict, "_BLOCK", block)
        assert largest_verdict.without_every_tenth(tmp_path / "results.json", tmp_path / "fewer.json") == (25, 23)
        assert json.loads((tmp_path / "fewer.json").read_text()) == [
            each for n, each in enumerate(results, 1) if n % 10
        ]
