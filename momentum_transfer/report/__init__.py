"""The report: records, run folders and the papers' tables in; one self-contained page, Markdown and CSV out."""
