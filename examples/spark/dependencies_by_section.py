"""Dependencies by section: a batch query over documents of Debian packages, all as they were at one moment.

    pip install 'tidemarkdb[spark]'
    python examples/spark/load_release.py HOST:PORT debian bookworm
    python examples/spark/dependencies_by_section.py HOST:PORT debian
"""

import sys

from pyspark.sql import DataFrame, SparkSession

SCHEMA = "key binary, value struct<section: string, depends: array<string>>"

# An entry such as "libc6 (>= 2.14)" or "default-mta | exim4" counts for the first name in it, once for each package.
NAMES = """
    select value.section, array_distinct(transform(value.depends, d -> regexp_extract(d, '^[^ :|]+', 0))) as depends
    from {packages}
"""
QUERY = """
    with
        sizes as (
            select section, count(*) as packages, round(avg(size(depends)), 2) as average, max(size(depends)) as most
            from {names} group by section),
        dependents as (
            select section, name, count(*) as dependents
            from (select section, explode(depends) as name from {names}) group by section, name),
        favourites as (
            select section, max(struct(dependents, name)) as first from dependents group by section)
    select section, packages, average, most, first.name as most_depended_on, first.dependents
    from sizes left join favourites using (section) order by packages desc, section
"""


def dependencies(spark: SparkSession, address: str, group: str) -> DataFrame:
    """Return for each section its packages, their dependencies, and the package that most of them depend on."""
    packages = (
        spark.read.format("tidemark").option("endpoints", address).option("group", group)
        .option("mode", "documents").option("valueFormat", "json").schema(SCHEMA).load())
    # Both halves of the query take the cached rows: the documents are read once, and both show the same state.
    names = spark.sql(NAMES, packages=packages).cache()
    return spark.sql(QUERY, names=names)


def main(address: str, group: str) -> None:
    spark = SparkSession.builder.appName("dependencies-by-section").getOrCreate()
    dependencies(spark, address, group).show(truncate=False)


if __name__ == "__main__":
    main(*sys.argv[1:])
