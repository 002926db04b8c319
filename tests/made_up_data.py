"""A small folder of made-up data sets in the layouts of the published ones."""

import gzip

import numpy as np
from scipy.io import savemat

N = 40
GENRES = ("unknown", "Action", "Comedy", "Drama")
JOBS = ("artist", "doctor", "student")


def cells(rng, share=0.6):
    row, col = np.nonzero(rng.random((N, N)) < share)
    return row + 1, col + 1


def write_lines(path, lines, header=None, packed=False, encoding="utf8"):
    path.parent.mkdir(parents=True, exist_ok=True)
    text = "\n".join(([header] if header else []) + list(lines)) + "\n"
    path.write_bytes(gzip.compress(text.encode(encoding)) if packed else text.encode(encoding))


def make_folder(folder, seed=0):
    """Write all data sets that experiments read."""
    rng = np.random.default_rng(seed)
    row, col = cells(rng)
    stars = rng.integers(1, 6, len(row))
    rated = [f"{r}\t{c}\t{s}\t{880000000 + i}" for i, (r, c, s) in enumerate(zip(row, col, stars, strict=True))]
    movies = folder / "ml-100k"
    for name, lines in (("u.data", rated), ("u1.base", rated[::2]), ("u1.test", rated[1::2])):
        write_lines(movies / name, lines)
    write_lines(movies / "u.user", (f"{i}|{20 + i}|{'MF'[i % 2]}|{JOBS[i % 3]}|1234{i}" for i in range(1, N + 1)))
    write_lines(movies / "u.genre", (f"{name}|{i}" for i, name in enumerate(GENRES)))
    flags = (rng.random((N, len(GENRES))) < 0.4).astype(int)
    films = (f"{i}|Amélie {i}|01-Jan-1995||http://x|" + "|".join(map(str, flags[i - 1])) for i in range(1, N + 1))
    write_lines(movies / "u.item", films, encoding="latin1")
    triples = [f"{r},{c},{s}" for r, c, s in zip(row, col, stars, strict=True)]
    write_lines(folder / "ml-1m" / "ratings.csv", triples, "user,item,rating")
    write_lines(
        folder / "ml-1m" / "users.dat", (f"{i}::{'MF'[i % 2]}::{18 + i % 3}::{i % 4}::1234{i}" for i in range(1, N + 1))
    )
    write_lines(
        folder / "ml-1m" / "movies.dat",
        (f"{i}::Amélie {i}::{'|'.join(GENRES[: 1 + i % 2])}" for i in range(1, N + 1)),
        encoding="latin1",
    )
    books = [f"{r},{c:09d}X,{s * 2}" for r, c, s in zip(row, col, stars, strict=True)]
    write_lines(folder / "bookcrossing" / "BX-Ratings.csv", [*books, "1,0000000001,0"], "User-ID,ISBN,Book-Rating")
    pairs = [f"{i}\t{j}" for i in range(1, 235) for j in range(i + 1, 235) if rng.random() < 0.2]
    write_lines(folder / "nips234" / "NIPS234.txt", pairs)
    terms = np.zeros((N, N, 16))
    terms[row - 1, col - 1, rng.integers(0, 16, len(row))] = 1
    (folder / "alyawarra").mkdir()
    savemat(folder / "alyawarra" / "alyawarradata.mat", {"Rs": terms})
    (folder / "usps").mkdir()
    digits = rng.integers(1, 5, 400)
    lit = rng.random((400, 256)) < (np.arange(256) % (digits[:, None] + 1) == 0) * 0.8 + 0.1
    lines = (f"{d} " + " ".join(f"{k + 1}:{1 if on else -1}" for k, on in enumerate(image)) for d, image in
             zip(digits, lit, strict=True))  # fmt: skip
    write_lines(folder / "usps" / "usps", lines)
    votes = rng.choice(["yes", "no", "abstain"], len(row), p=[0.6, 0.2, 0.2])
    cast = (f"{c + 2}.0,Country {r},C{r},{v}" for r, c, v in zip(row, col, votes, strict=True))
    write_lines(folder / "un-votes" / "un_votes.csv.gz", cast, "rcid,country,country_code,vote", packed=True)
    calls = (f'{c + 2},1.0,0,{c * 10}.0,R/{c},{c % 2},0,"A, B","SOME\nTEXT"' for c in range(1, N + 1))
    header = "rcid,session,importantvote,date,unres,amend,para,short,descr"
    write_lines(folder / "un-votes" / "un_roll_calls.csv.gz", calls, header, packed=True)
    issues = (f"{c + 2},me,{('Peace', 'Arms, trade')[c % 2]!r}".replace("'", '"') for c in range(1, N, 3))
    write_lines(folder / "un-votes" / "un_roll_call_issues.csv.gz", issues, "rcid,short_name,issue", packed=True)
    return folder
