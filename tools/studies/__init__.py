"""Programs that only a study needs: suites name them as tools/studies/NAME.py, and they write records like the rest."""
