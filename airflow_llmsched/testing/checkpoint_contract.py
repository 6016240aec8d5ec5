"""What every ``CheckpointFormat`` must prove. An adapter's author subclasses it and says how a checkpoint is saved."""

# ruff: noqa: D102  # a test's name is its sentence

from __future__ import annotations

import json
import shutil
from abc import ABC, abstractmethod
from pathlib import Path

import pytest

from airflow_llmsched.agent.seal import SEAL_NAME, seal
from airflow_llmsched.domain.checkpoint import CheckpointRef, Damaged, SavedBy, Sound, VerifyDepth
from airflow_llmsched.domain.layout import ParallelLayout
from airflow_llmsched.errors import CouldNotLookError, SpecError
from airflow_llmsched.ports import CheckpointFormat

ALL_DEPTHS = tuple(VerifyDepth)


class CheckpointSaver(ABC):
    """Saves checkpoints as the trainer of a format does."""

    format: CheckpointFormat
    """The adapter under test."""

    last_file: str
    """The file that a save writes last: without it the checkpoint is unfinished."""

    data_file: str
    """A file that the checkpoint cannot be loaded without, whose size and content can be checked without a seal."""

    @abstractmethod
    def name(self, step: int) -> str:
        """Return the directory's name."""

    @abstractmethod
    def save(self, root: Path, step: int) -> Path:
        """Save a whole checkpoint that any number of ranks can resume from, and return its directory."""


class CheckpointFormatContract:
    """Subclass as ``TestMyFormat`` and define the ``saver`` fixture."""

    @pytest.fixture
    def saver(self) -> CheckpointSaver:
        """Return what saves checkpoints of the format."""
        raise NotImplementedError("define the saver fixture in the subclass")

    def test_an_absent_root_has_no_checkpoints(self, saver: CheckpointSaver, tmp_path: Path) -> None:
        assert list(saver.format.scan(str(tmp_path / "no" / "such"))) == []

    def test_an_empty_root_has_no_checkpoints(self, saver: CheckpointSaver, tmp_path: Path) -> None:
        """Field case G6, first half: a first run has nothing to resume."""
        assert list(saver.format.scan(str(tmp_path))) == []

    @pytest.mark.parametrize("trouble", ["a file", "below a file", "a link loop", "a link to nowhere"])
    def test_a_root_that_cannot_be_read_is_never_taken_for_empty(
        self, saver: CheckpointSaver, tmp_path: Path, trouble: str
    ) -> None:
        root = tmp_path / "root"
        if trouble == "a link loop":
            root.symlink_to(root)
        elif trouble == "a link to nowhere":  # a mount that is not there
            root.symlink_to(tmp_path / "unmounted")
        else:
            root.write_bytes(b"")
        if trouble == "below a file":
            root = root / "deeper"
        with pytest.raises(CouldNotLookError, match="cannot read") as caught:
            list(saver.format.scan(str(root)))
        assert str(root) in str(caught.value)

    def test_a_bucket_is_refused_not_taken_for_an_absent_folder(self, saver: CheckpointSaver) -> None:
        with pytest.raises(SpecError, match="must be a folder"):
            list(saver.format.scan("s3://bucket/checkpoints"))

    def test_a_whole_checkpoint_is_found_complete_sound_and_resumable(
        self, saver: CheckpointSaver, tmp_path: Path
    ) -> None:
        path = saver.save(tmp_path, 100)
        (ref,) = saver.format.scan(str(tmp_path))
        assert (ref.step, ref.path, ref.format, ref.torn_reason) == (100, str(path), saver.format.name, None)
        assert ref.saved_at_s is not None
        assert ref.saved_at_s > 1_600_000_000
        for depth in ALL_DEPTHS:
            verdict = saver.format.verify(ref, depth=depth)
            assert isinstance(verdict, Sound)
            assert verdict.depth is depth
            assert verdict.num_bytes >= (path / saver.data_file).stat().st_size
        for dp in (1, 3, 64):
            assert saver.format.can_resume(ref, ParallelLayout(dp=dp)).ok

    def test_steps_are_compared_as_numbers_newest_first(self, saver: CheckpointSaver, tmp_path: Path) -> None:
        """Field case G7: step_9000 sorts after step_10000 as text."""
        for step in (9000, 10_000, 200, 0, 1000):
            saver.save(tmp_path, step)
        assert [ref.step for ref in saver.format.scan(str(tmp_path))] == [10_000, 9000, 1000, 200, 0]

    def test_a_save_without_its_last_file_is_torn_and_the_older_one_counts(
        self, saver: CheckpointSaver, tmp_path: Path
    ) -> None:
        """Field cases G1 and G2."""
        saver.save(tmp_path, 100)
        (saver.save(tmp_path, 200) / saver.last_file).unlink()
        newest, older = saver.format.scan(str(tmp_path))
        assert newest.step == 200
        assert saver.last_file in str(newest.torn_reason)
        assert (older.step, older.complete) == (100, True)
        verdict = saver.format.verify(newest, depth=VerifyDepth.LISTING)
        assert isinstance(verdict, Damaged)
        assert saver.last_file in verdict.reason
        compatibility = saver.format.can_resume(newest, ParallelLayout(dp=1))
        assert not compatibility.ok
        assert saver.last_file in compatibility.reason

    def test_a_root_with_broken_checkpoints_only_says_why_of_each(self, saver: CheckpointSaver, tmp_path: Path) -> None:
        """Field case G6, second half."""
        for step in (1, 2):
            (saver.save(tmp_path, step) / saver.last_file).unlink()
        (tmp_path / saver.name(3)).mkdir()
        refs = list(saver.format.scan(str(tmp_path)))
        assert [ref.step for ref in refs] == [3, 2, 1]
        assert all(ref.torn_reason for ref in refs)
        assert "empty" in str(refs[0].torn_reason)

    @pytest.mark.parametrize(
        "pattern", ["tmp-{}", ".tmp-{}", "{}.tmp", "{}-tmp", "{}.orbax-checkpoint-tmp-1700000000", "{}.partial"]
    )
    def test_a_temporary_directory_that_looks_whole_is_torn(
        self, saver: CheckpointSaver, tmp_path: Path, pattern: str
    ) -> None:
        """Field case G10."""
        saver.save(tmp_path, 400)
        saver.save(tmp_path, 500).rename(tmp_path / pattern.format(saver.name(500)))
        newest, older = saver.format.scan(str(tmp_path))
        assert (newest.step, newest.complete) == (500, False)
        assert "temporary" in str(newest.torn_reason)
        assert (older.step, older.complete) == (400, True)

    def test_of_one_step_the_finished_name_comes_before_the_temporary_one(
        self, saver: CheckpointSaver, tmp_path: Path
    ) -> None:
        saver.save(tmp_path, 5)
        (tmp_path / f"tmp-{saver.name(5)}").mkdir()
        assert [ref.complete for ref in saver.format.scan(str(tmp_path))] == [True, False]

    def test_what_attempts_saved_in_folders_of_their_own_is_found_from_the_root_they_share(
        self, saver: CheckpointSaver, tmp_path: Path
    ) -> None:
        first, tenth = SavedBy(generation=1, attempt=1), SavedBy(generation=1, attempt=10)
        cleared = SavedBy(generation=2, attempt=1)
        saver.save(tmp_path, 100)  # as trainers did before attempts had folders
        for saved_by, step in ((first, 200), (tenth, 300), (cleared, 150)):
            (tmp_path / saved_by.folder).mkdir()
            saver.save(tmp_path / saved_by.folder, step)
        refs = list(saver.format.scan(str(tmp_path)))
        assert [(ref.step, ref.saved_by) for ref in refs] == [(300, tenth), (200, first), (150, cleared), (100, None)]
        assert refs[0].path == str(tmp_path / tenth.folder / saver.name(300))
        for ref in refs:
            assert isinstance(saver.format.verify(ref, depth=VerifyDepth.CONTENT), Sound)
            assert saver.format.can_resume(ref, ParallelLayout(dp=3)).ok

    def test_of_one_step_the_later_attempts_comes_first_and_the_root_last(
        self, saver: CheckpointSaver, tmp_path: Path
    ) -> None:
        savers = [SavedBy(generation=g, attempt=a) for g, a in ((1, 2), (1, 10_000), (2, 1))]
        saver.save(tmp_path, 5)
        for saved_by in savers:
            (tmp_path / saved_by.folder).mkdir()
            saver.save(tmp_path / saved_by.folder, 5)
        assert [ref.saved_by for ref in saver.format.scan(str(tmp_path))] == [*reversed(savers), None]

    def test_an_attempts_torn_save_is_torn_and_its_folder_alone_is_nothing(
        self, saver: CheckpointSaver, tmp_path: Path
    ) -> None:
        folder = tmp_path / SavedBy(generation=1, attempt=1).folder
        folder.mkdir()
        assert list(saver.format.scan(str(tmp_path))) == []
        (saver.save(folder, 5) / saver.last_file).unlink()
        (folder / f"tmp-{saver.name(6)}").mkdir()
        assert [(ref.step, ref.complete) for ref in saver.format.scan(str(tmp_path))] == [(6, False), (5, False)]

    def test_folders_of_attempts_are_read_one_level_deep_and_only_by_their_exact_names(
        self, saver: CheckpointSaver, tmp_path: Path
    ) -> None:
        inside = tmp_path / "g0001-a0001" / "g0001-a0002"
        for folder in (inside, *(tmp_path / name for name in ("g1", "a0001", "g0001-a0001.bak", "xg0001-a0001"))):
            folder.mkdir(parents=True)
            saver.save(folder, 5)
        (tmp_path / "g0009-a0009").write_bytes(b"a file")
        assert list(saver.format.scan(str(tmp_path))) == []

    @pytest.mark.parametrize("trouble", ["a link loop", "a link to nowhere"])
    def test_an_attempts_folder_that_cannot_be_read_is_never_taken_for_empty(
        self, saver: CheckpointSaver, tmp_path: Path, trouble: str
    ) -> None:
        saver.save(tmp_path, 5)
        folder = tmp_path / "g0001-a0001"
        folder.symlink_to(folder if trouble == "a link loop" else tmp_path / "unmounted")
        with pytest.raises(CouldNotLookError, match="cannot read") as caught:
            list(saver.format.scan(str(tmp_path)))
        assert str(folder) in str(caught.value)

    def test_a_marker_beside_the_directory_that_it_is_unfinished_is_believed(
        self, saver: CheckpointSaver, tmp_path: Path
    ) -> None:
        saver.save(tmp_path, 5)
        (tmp_path / f"{saver.name(5)}-unfinished").write_bytes(b"")
        (ref,) = saver.format.scan(str(tmp_path))
        assert "unfinished" in str(ref.torn_reason)

    def test_names_that_are_no_steps_are_passed_over(self, saver: CheckpointSaver, tmp_path: Path) -> None:
        path = saver.save(tmp_path, 5)
        for name in ("notes.txt", "best", f"{path.name}.bak", f"x{path.name}", f"{path.name}x", f"{path.name}\n"):
            (tmp_path / name).mkdir()
        (tmp_path / saver.name(5).replace("5", "\N{ARABIC-INDIC DIGIT FIVE}")).mkdir()  # a digit to Python, not to us
        assert [ref.step for ref in saver.format.scan(str(tmp_path))] == [5]

    def test_missing_ranks_markers_make_it_incomplete(self, saver: CheckpointSaver, tmp_path: Path) -> None:
        """Field case G12: 7 of 8 rank-complete markers."""
        path = saver.save(tmp_path, 5)
        for rank in range(8):
            (path / f"rank_{rank}.done").write_bytes(b"")
        assert [ref.complete for ref in saver.format.scan(str(tmp_path))] == [True]
        (path / "rank_3.done").unlink()
        (ref,) = saver.format.scan(str(tmp_path))
        assert "7 of 8 ranks" in str(ref.torn_reason)
        assert "rank 3" in str(ref.torn_reason)

    def test_a_missing_data_file_is_seen_in_the_listing_and_named(self, saver: CheckpointSaver, tmp_path: Path) -> None:
        """Field case G13: an index names a shard that is not there."""
        (saver.save(tmp_path, 5) / saver.data_file).unlink()
        (ref,) = saver.format.scan(str(tmp_path))
        assert Path(saver.data_file).name in str(ref.torn_reason)
        self.assert_damaged(saver, ref, from_depth=VerifyDepth.LISTING, file=saver.data_file)

    @pytest.mark.parametrize("trouble", ["directory", "link loop", "dangling link"])
    def test_a_data_file_that_is_none_is_as_good_as_missing(
        self, saver: CheckpointSaver, tmp_path: Path, trouble: str
    ) -> None:
        path = saver.save(tmp_path, 5) / saver.data_file
        (ref,) = saver.format.scan(str(tmp_path))
        path.unlink()
        if trouble == "directory":
            path.mkdir()
        else:
            path.symlink_to(path if trouble == "link loop" else tmp_path / "nowhere")
        self.assert_damaged(saver, ref, from_depth=VerifyDepth.LISTING, file=saver.data_file)

    def test_a_shortened_data_file_is_seen_by_its_size(self, saver: CheckpointSaver, tmp_path: Path) -> None:
        path = saver.save(tmp_path, 5) / saver.data_file
        path.write_bytes(path.read_bytes()[:-1])
        (ref,) = saver.format.scan(str(tmp_path))
        assert ref.complete  # a listing cannot know
        self.assert_damaged(saver, ref, from_depth=VerifyDepth.SIZES, file=saver.data_file)

    def test_damaged_bytes_are_seen_in_the_content_without_a_seal(self, saver: CheckpointSaver, tmp_path: Path) -> None:
        """Formats have unused bytes of padding, so all of the middle third is damaged, as by a lost sector."""
        path = saver.save(tmp_path, 5) / saver.data_file
        data = path.read_bytes()
        third = len(data) // 3
        path.write_bytes(data[:third] + bytes(byte ^ 0xFF for byte in data[third:-third]) + data[-third:])
        (ref,) = saver.format.scan(str(tmp_path))
        assert isinstance(saver.format.verify(ref, depth=VerifyDepth.SIZES), Sound)
        self.assert_damaged(saver, ref, from_depth=VerifyDepth.CONTENT, file=saver.data_file)

    def test_a_seal_gives_digest_world_size_and_time(self, saver: CheckpointSaver, tmp_path: Path) -> None:
        path = saver.save(tmp_path, 5)
        digest = seal(path, step=5, world_size=4, saved_at_s=1_700_000_000.5)
        (ref,) = saver.format.scan(str(tmp_path))
        assert (ref.complete, ref.world_size, ref.saved_at_s) == (True, 4, 1_700_000_000.5)
        for depth in ALL_DEPTHS:
            verdict = saver.format.verify(ref, depth=depth)
            assert isinstance(verdict, Sound)
            assert verdict.digest == digest

    def test_every_file_of_a_sealed_checkpoint_is_watched(self, saver: CheckpointSaver, tmp_path: Path) -> None:
        good = saver.save(tmp_path / "good", 5)
        (good / "notes").write_bytes(b"some words")
        seal(good, step=5, world_size=1)
        for file in sorted(path.relative_to(good).as_posix() for path in good.rglob("*") if path.is_file()):
            if file == SEAL_NAME:
                continue
            for damage, from_depth in ((Path.unlink, "listing"), (cut, "sizes"), (flip_byte, "content")):
                shutil.rmtree(tmp_path / "bad", ignore_errors=True)
                shutil.copytree(good, tmp_path / "bad" / good.name)
                damage(tmp_path / "bad" / good.name / file)
                ref = CheckpointRef(step=5, path=str(tmp_path / "bad" / good.name), format=saver.format.name)
                assert isinstance(saver.format.verify(ref, depth=VerifyDepth.CONTENT), Damaged)
                self.assert_damaged(saver, ref, from_depth=VerifyDepth(from_depth), file=file, only_from=False)

    def test_a_seal_that_cannot_be_trusted_makes_it_torn(self, saver: CheckpointSaver, tmp_path: Path) -> None:
        path = saver.save(tmp_path, 5)
        seal(path, step=5, world_size=1)
        whole = (path / SEAL_NAME).read_text()
        altered = json.loads(whole)
        altered["files"][0]["num_bytes"] += 1
        for text in (whole[: len(whole) // 2], "", "[]", json.dumps(altered), whole.replace('"v":1', '"v":99')):
            (path / SEAL_NAME).write_text(text)
            (ref,) = saver.format.scan(str(tmp_path))
            assert SEAL_NAME in str(ref.torn_reason)
        (path / SEAL_NAME).unlink()
        seal(path, step=6, world_size=1)
        (ref,) = saver.format.scan(str(tmp_path))
        assert "step 6" in str(ref.torn_reason)

    def test_a_directory_that_is_a_file_is_torn(self, saver: CheckpointSaver, tmp_path: Path) -> None:
        saver.save(tmp_path, 4)
        (tmp_path / saver.name(5)).write_bytes(b"")
        (tmp_path / saver.name(6)).symlink_to(saver.name(6))
        sixth, fifth, fourth = saver.format.scan(str(tmp_path))
        assert "circle" in str(sixth.torn_reason)
        assert "is a file" in str(fifth.torn_reason)
        assert fourth.complete

    def test_a_checkpoint_that_is_gone_is_damaged_and_cannot_be_resumed(
        self, saver: CheckpointSaver, tmp_path: Path
    ) -> None:
        path = saver.save(tmp_path, 5)
        (ref,) = saver.format.scan(str(tmp_path))
        shutil.rmtree(path)
        verdict = saver.format.verify(ref, depth=VerifyDepth.LISTING)
        assert isinstance(verdict, Damaged)
        assert str(path) in verdict.reason
        assert not saver.format.can_resume(ref, ParallelLayout(dp=1)).ok

    def test_a_checkpoint_that_is_deleted_during_the_scan_is_left_out(
        self, saver: CheckpointSaver, tmp_path: Path
    ) -> None:
        paths = [saver.save(tmp_path, step) for step in (1, 2, 3)]
        scan = saver.format.scan(str(tmp_path))
        assert next(scan).step == 3
        shutil.rmtree(paths[1])
        assert [ref.step for ref in scan] == [1]

    def test_the_digest_names_the_content(self, saver: CheckpointSaver, tmp_path: Path) -> None:
        path = saver.save(tmp_path, 5)
        other = saver.save(tmp_path, 6)
        newer, older = saver.format.scan(str(tmp_path))
        digests = {self.digest(saver, older, depth) for depth in ALL_DEPTHS}
        assert len(digests) == 1
        assert digests != {self.digest(saver, newer, VerifyDepth.LISTING)}
        copy = tmp_path / "copy" / path.name
        shutil.copytree(path, copy)
        (copied,) = saver.format.scan(str(tmp_path / "copy"))
        assert {self.digest(saver, copied, VerifyDepth.LISTING)} == digests
        assert other.is_dir()

    def test_the_listing_and_the_scan_agree(self, saver: CheckpointSaver, tmp_path: Path) -> None:
        """Whatever file is taken away, ``scan`` calls complete what ``verify`` by listing calls sound."""
        whole = saver.save(tmp_path / "whole", 5)
        for file in sorted(path.relative_to(whole) for path in whole.rglob("*") if path.is_file()):
            root = tmp_path / "without" / str(file)
            shutil.copytree(whole, root / whole.name)
            (root / whole.name / file).unlink()
            (ref,) = saver.format.scan(str(root))
            verdict = saver.format.verify(ref, depth=VerifyDepth.LISTING)
            assert isinstance(verdict, Sound) is ref.complete

    @staticmethod
    def digest(saver: CheckpointSaver, ref: CheckpointRef, depth: VerifyDepth) -> str:
        """Return the digest of a sound checkpoint."""
        verdict = saver.format.verify(ref, depth=depth)
        assert isinstance(verdict, Sound)
        return verdict.digest

    @staticmethod
    def assert_damaged(
        saver: CheckpointSaver, ref: CheckpointRef, *, from_depth: VerifyDepth, file: str, only_from: bool = True
    ) -> None:
        """Assert that ``verify`` calls ``ref`` damaged and names ``file`` at ``from_depth`` and all deeper ones.

        With ``only_from``, that it does not at a shallower one.
        """
        for number, depth in enumerate(ALL_DEPTHS):
            verdict = saver.format.verify(ref, depth=depth)
            if number >= ALL_DEPTHS.index(from_depth):
                assert isinstance(verdict, Damaged), depth
                assert Path(file).name in verdict.reason
            elif only_from:
                assert isinstance(verdict, Sound), depth


def flip_byte(path: Path) -> None:
    """Change one bit in the middle of a file."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))


def cut(path: Path) -> None:
    """Take the last byte off a file."""
    path.write_bytes(path.read_bytes()[:-1])
