"""Data sets are found in the data folder, or fetched whole and checked, or it is said how to get them."""

import hashlib
import threading
import zipfile
from dataclasses import replace
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest

from dyads.datasets import published, sources
from dyads.errors import DyadsError, MissingDataError
from made_up_data import N, make_folder


@pytest.fixture
def publisher(tmp_path):
    """A server of a folder: its address, and the folder."""

    class Quiet(SimpleHTTPRequestHandler):
        def __init__(self, *arguments):
            super().__init__(*arguments, directory=tmp_path / "published")

        def log_message(self, *arguments):
            pass

    (tmp_path / "published").mkdir()
    server = ThreadingHTTPServer(("127.0.0.1", 0), Quiet)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}", tmp_path / "published"
    server.shutdown()
    server.server_close()


@pytest.fixture
def home(tmp_path, monkeypatch):
    """An empty data folder."""
    monkeypatch.setenv("DYADS_DATA", str(tmp_path / "data"))
    return tmp_path / "data"


def publish(monkeypatch, publisher, damaged=False):
    """MovieLens 1M as its publisher has it: an archive with a folder inside."""
    address, folder = publisher
    with zipfile.ZipFile(folder / "ml-1m.zip", "w") as archive:
        archive.writestr("ml-1m/ratings.dat", "1::10::5::978300760\n2::11::3::978302109\n")
        archive.writestr("ml-1m/users.dat", "1::F::1::10::48067\n2::M::56::16::70072\n")
        archive.writestr("ml-1m/movies.dat", "10::GoldenEye (1995)::Action|Adventure\n11::Heat (1995)::Crime\n")
    digest = hashlib.md5((folder / "ml-1m.zip").read_bytes()).hexdigest()
    source = replace(
        sources.SOURCES["ml-1m"],
        url=f"{address}/ml-1m.zip",
        checksums={"ml-1m.zip": f"md5:{'0' * 32 if damaged else digest}"},
    )
    monkeypatch.setitem(sources.SOURCES, "ml-1m", source)


def test_what_is_not_there_is_fetched_once_and_checked(publisher, home, monkeypatch):
    publish(monkeypatch, publisher)
    steps = []
    data = published.movielens_1m(lambda done, total: steps.append((done, total)))
    assert data.y.tolist() == [5, 3]
    assert {name: column.tolist() for name, column in data.X.items()} == {"user": [1, 2], "item": [10, 11]}
    assert steps[-1][0] == steps[-1][1] > 0
    assert sorted(path.name for path in home.iterdir()) == ["ml-1m"], "nothing else is left behind"
    (publisher[1] / "ml-1m.zip").unlink()
    assert len(published.movielens_1m().y) == 2


def test_another_checksum_is_refused_and_nothing_kept(publisher, home, monkeypatch):
    publish(monkeypatch, publisher, damaged=True)
    with pytest.raises(MissingDataError, match=r"has the md5 \w{32}: expected 0{32}"):
        published.movielens_1m()
    assert list(home.iterdir()) == []


def test_a_publisher_that_does_not_answer_is_one_sentence(publisher, home, monkeypatch):
    publish(monkeypatch, publisher)
    (publisher[1] / "ml-1m.zip").unlink()
    with pytest.raises(MissingDataError, match=r"could not be fetched .*404.*grouplens.org.*DYADS_DATA"):
        published.movielens_1m()
    assert list(home.iterdir()) == []


def test_a_packed_file_is_checked_by_what_is_inside(publisher, home, monkeypatch):
    import gzip

    address, folder = publisher
    (folder / "wiki-Vote.txt.gz").write_bytes(gzip.compress(b"# a graph\n1\t2\n3\t4\n"))
    source = replace(sources.SOURCES["wiki-vote"], url=f"{address}/wiki-Vote.txt.gz")
    monkeypatch.setitem(sources.SOURCES, "wiki-vote", source)
    with pytest.raises(MissingDataError, match="wiki-Vote.txt of .* has the sha256"):
        published.wiki_vote()
    inside = hashlib.sha256(b"# a graph\n1\t2\n3\t4\n").hexdigest()
    monkeypatch.setitem(sources.SOURCES, "wiki-vote", replace(source, checksums={"wiki-Vote.txt": f"sha256:{inside}"}))
    assert published.wiki_vote().X["voter"].tolist() == [1, 3]


def test_what_nobody_can_fetch_says_how_to_get_it(home):
    for load in (published.nips_coauthors, published.alyawarra, published.nations, published.un_votes):
        with pytest.raises(DyadsError, match=r"expected .* there\. .*see http.*DYADS_DATA"):
            load()


def test_every_source_can_be_had():
    for source in sources.SOURCES.values():
        assert (source.url is None) == bool(source.how), source.name
        assert bool(source.url) == bool(source.checksums), source.name


def test_loaders_read_the_published_layouts(tmp_path, monkeypatch):
    monkeypatch.setenv("DYADS_DATA", str(make_folder(tmp_path)))
    movies = published.movielens_100k()
    assert set(movies.y) == {1, 2, 3, 4, 5}
    assert movies.row_features["occupation"][0] == "doctor"
    assert all(set(genres) <= {"unknown", "Action", "Comedy", "Drama"} for genres in movies.col_features["genre"])
    train, test = published.movielens_100k("u1")
    assert len(train.y) + len(test.y) == len(movies.y) == len(published.movielens_1m().y)
    books = published.bookcrossing()
    assert books.y.min() > 0
    assert all(len(isbn) == 10 for isbn in books.X["item"]), "an ISBN keeps its zeros"
    assert len(published.nips_coauthors().y) == 234 * 233 // 2
    assert set(published.alyawarra().y) == set(range(16))
    images = published.usps().images
    assert images.shape == (400, 16, 16)
    assert set(np.unique(images)) == {0, 1}
    cast = published.un_votes()
    assert set(cast.y) == {"yes", "no", "abstain"}
    assert len(np.unique(cast.X["country"])) == N
    assert {"Peace", "Arms, trade"} == {issue for each in cast.col_features["issue"] for issue in each}


def test_the_full_dump_of_bookcrossing_is_read_too(tmp_path, monkeypatch):
    monkeypatch.setenv("DYADS_DATA", str(tmp_path))
    (tmp_path / "bookcrossing").mkdir()
    text = '"User-ID";"ISBN";"Book-Rating"\n"276725";"034545104X";"0"\n"276726";"0155061224";"5"\n"7";"caf\xe9";"9"\n'
    (tmp_path / "bookcrossing" / "BX-Book-Ratings.csv").write_bytes(text.encode("latin1"))
    books = published.bookcrossing()
    assert books.X["item"].tolist() == ["0155061224", "café"]
    assert books.y.tolist() == [5, 9]
