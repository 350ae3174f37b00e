"""pandas, pyarrow, dask and zarr write and read through fsspec, each where it is installed."""

from __future__ import annotations

from typing import Any

import kvfs
import pytest

fsspec = pytest.importorskip("fsspec", reason="SKIPPED: fsspec is not installed")


def frame() -> Any:
    pandas = pytest.importorskip("pandas", reason="SKIPPED: pandas is not installed")
    return pandas.DataFrame(
        {
            "fruit": ["apple", "pear", "fig"] * 1000,
            "weight": range(3000),
            "ripe": [True, False] * 1500,
        }
    )


def test_pandas_writes_and_reads_csv_and_pickles(store: kvfs.Store) -> None:
    import pandas

    table, options = frame(), {"store": store}
    for url in ("kvfs:///tables/fruit.csv", "kvfs:///tables/fruit.csv.gz"):
        table.to_csv(url, index=False, storage_options=options)
        pandas.testing.assert_frame_equal(pandas.read_csv(url, storage_options=options), table)
    table.to_pickle("kvfs:///tables/fruit.pickle", storage_options=options)
    back = pandas.read_pickle("kvfs:///tables/fruit.pickle", storage_options=options)
    pandas.testing.assert_frame_equal(back, table)
    assert store.fs.listdir("tables") == ["fruit.csv", "fruit.csv.gz", "fruit.pickle"]


def test_pandas_writes_and_reads_parquet(store: kvfs.Store) -> None:
    import pandas

    pytest.importorskip("pyarrow", reason="SKIPPED: pyarrow is not installed")
    table, options = frame(), {"store": store}
    table.to_parquet("kvfs:///fruit.parquet", storage_options=options)
    back = pandas.read_parquet("kvfs:///fruit.parquet", storage_options=options)
    pandas.testing.assert_frame_equal(back, table)
    table.to_parquet("kvfs:///parts", partition_cols=["fruit"], storage_options=options)
    assert sorted(store.fs.listdir("parts")) == ["fruit=apple", "fruit=fig", "fruit=pear"]
    back = pandas.read_parquet("kvfs:///parts", storage_options=options)
    assert len(back) == 3000 and back["weight"].sum() == table["weight"].sum()


def test_pyarrow_takes_the_store_as_a_file_system(store: kvfs.Store) -> None:
    pyarrow = pytest.importorskip("pyarrow", reason="SKIPPED: pyarrow is not installed")
    dataset = pytest.importorskip("pyarrow.dataset")
    parquet = pytest.importorskip("pyarrow.parquet")
    files = pytest.importorskip("pyarrow.fs")

    fs = files.PyFileSystem(files.FSSpecHandler(fsspec.filesystem("kvfs", store=store)))
    table = pyarrow.table({"n": list(range(10_000)), "even": [n % 2 == 0 for n in range(10_000)]})
    fs.create_dir("/data", recursive=True)
    parquet.write_table(table, "/data/one.parquet", filesystem=fs)
    assert parquet.read_table("/data/one.parquet", filesystem=fs).equals(table)
    dataset.write_dataset(
        table, "/data/set", format="parquet", partitioning=["even"], filesystem=fs
    )
    read = dataset.dataset("/data/set", format="parquet", partitioning=["even"], filesystem=fs)
    assert read.count_rows() == 10_000
    assert read.to_table(filter=dataset.field("n") < 7).num_rows == 7
    infos = fs.get_file_info(files.FileSelector("/data", recursive=False))
    assert {(i.base_name, i.is_file) for i in infos} == {("one.parquet", True), ("set", False)}
    fs.move("/data/one.parquet", "/data/two.parquet")
    fs.copy_file("/data/two.parquet", "/data/three.parquet")
    assert parquet.read_table("/data/three.parquet", filesystem=fs).equals(table)
    fs.delete_dir("/data")
    assert not store.fs.exists("data")


def test_a_table_and_its_key_commit_together(store: kvfs.Store) -> None:
    import pandas

    table = frame()
    with store.transaction() as t:
        table.to_csv("kvfs:///fruit.csv", index=False, storage_options={"store": t})
        t["tables"][b"fruit"] = b"%d rows" % len(table)
        assert not store.fs.exists("fruit.csv")
    back = pandas.read_csv("kvfs:///fruit.csv", storage_options={"store": store})
    assert store["tables"][b"fruit"] == b"%d rows" % len(back)
    store.create_snapshot("s")
    store.fs.remove("fruit.csv")
    with store.open_snapshot("s") as snapshot:
        back = pandas.read_csv("kvfs:///fruit.csv", storage_options={"store": snapshot})
        pandas.testing.assert_frame_equal(back, table)


def test_zarr_writes_and_reads_arrays(store: kvfs.Store) -> None:
    zarr = pytest.importorskip("zarr", reason="SKIPPED: zarr is not installed")
    numpy = pytest.importorskip("numpy")
    wrapper = pytest.importorskip("fsspec.implementations.asyn_wrapper")

    fs = wrapper.AsyncFileSystemWrapper(fsspec.filesystem("kvfs", store=store), asynchronous=True)
    group = zarr.create_group(zarr.storage.FsspecStore(fs, path="/arrays"))
    field = group.create_array("field", shape=(100, 100), chunks=(30, 30), dtype="i4")
    expected = numpy.arange(10_000, dtype="i4").reshape(100, 100)
    field[:] = expected
    field.attrs["unit"] = "K"
    group.create_array("field2", data=expected * 2)
    assert store.fs.isdir("arrays/field")
    again = zarr.open_group(zarr.storage.FsspecStore(fs, path="/arrays"), mode="r")
    assert numpy.array_equal(again["field"][:], expected)
    assert numpy.array_equal(again["field2"][10:20, 5], expected[10:20, 5] * 2)
    assert again["field"].attrs["unit"] == "K"
    assert sorted(name for name, _ in again.arrays()) == ["field", "field2"]


def test_dask_reads_what_it_has_written(store: kvfs.Store) -> None:
    bag = pytest.importorskip("dask.bag", reason="SKIPPED: dask is not installed")
    options = {"store": store}
    lines = [f"line {i}" for i in range(300)]
    # Threads, for a store is of one process.
    parts = bag.from_sequence(lines, npartitions=3)
    parts.to_textfiles("kvfs:///lines/*.txt", storage_options=options, scheduler="threads")
    assert len(store.fs.listdir("lines")) == 3
    read = bag.read_text("kvfs:///lines/*.txt", storage_options=options)
    assert [line.strip() for line in read.compute(scheduler="threads")] == lines
