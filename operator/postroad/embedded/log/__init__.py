"""The log: lanes, segments, frames, records, and the files of mails."""
