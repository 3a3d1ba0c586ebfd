from hypothesis import given
from hypothesis import strategies as st

from collector.readers import disk_usage, environment

DF = """Filesystem                     Size  Used Avail Use% Mounted on
tmpfs                          101G  3.6M  101G   1% /run
/dev/mapper/data-ckpt          3.5T  3.5T     0 100% /ckpt
/dev/mapper/data-big           3.5T  3.5T   30G 100% /big
/dev/loop3                      64M   64M     0 100% /snap/core20/2318
filer.cluster.example.org:/export/home
                               2.0T  1.0T  1.0T  50% /home
"""
INODES = """Filesystem      Inodes   IUsed IFree IUse% Mounted on
/dev/nvme0n1p2 6553600 6553600     0  100% /
"""
TYPES = """Filesystem     Type 1K-blocks      Used Available Use% Mounted on
/dev/sda1      ext4 103081248 103081248         0 100% /data
"""
QUOTA = """Disk quotas for user alice (uid 1207):
     Filesystem   space   quota   limit   grace   files   quota   limit   grace
filer:/export/ckpt
                  2000G*  2000G   2000G            31217       0       0
      /dev/sdb1   5000*    4000    6000   6days       10       0       0
"""
LUSTRE = """Disk quotas for usr alice (uid 1207):
      Filesystem    used   quota   limit   grace   files   quota   limit   grace
        /scratch  1.999T*   1.8T      2T 6d23h44m58s   80220       0       0       -
        /other       10G      0k      0k       - 1000000*  900000 1000000       -
"""


def facts(text: str) -> dict[str, str]:
    return {usage.name: usage.value for usage in disk_usage.read(text)}


def test_a_file_system_is_full_only_if_nothing_is_left() -> None:
    found = facts(DF)
    assert found["disk:/ckpt"] == "full: 0 of 3.5T free"
    assert found["disk:/big"].startswith("100% used")
    assert found["disk:/home"].startswith("50% used")
    assert not any("snap" in name for name in found)


def test_lines_of_a_wrapped_row_are_those_of_its_numbers() -> None:
    assert [usage.line for usage in disk_usage.read(DF)] == [2, 3, 4, 7]


def test_inodes_and_types() -> None:
    assert facts(INODES) == {"inodes:/": "full: 0 of 6553600 free"}
    assert facts(TYPES) == {"disk:/data": "full: 0 of 103081248 free"}


def test_quota_is_full_at_its_hard_limit() -> None:
    found = facts(QUOTA)
    assert found["quota:filer:/export/ckpt"] == "full: 2000G of 2000G"
    assert found["quota:/dev/sdb1"].startswith("over the soft limit")
    lustre = facts(LUSTRE)
    assert lustre["quota:/scratch"].startswith("full")
    assert lustre["quota:/other"].startswith("within limits")
    assert lustre["quota:/other files"].startswith("full")


def test_the_environment_reader_claims_such_tables() -> None:
    for text in (DF, INODES, TYPES, QUOTA, LUSTRE):
        assert environment.looks_like(text.encode())
    assert not environment.looks_like(b"step 10 loss 3\nFilesystem full, giving up\n")


@given(st.text(max_size=200), st.sampled_from([DF, QUOTA, LUSTRE]))
def test_any_text_after_a_table_is_survived(text: str, table: str) -> None:
    assert {usage.name for usage in disk_usage.read(table)} <= {usage.name for usage in disk_usage.read(table + text)}
