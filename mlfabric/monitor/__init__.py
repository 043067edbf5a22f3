"""Measures what links carry and tells the scheduler.

history.py    what passed over one link lately (pure)
evidence.py   transfers as evidence, and what is known of one link (pure)
estimate.py   judges links from transfers and NIC counters; the theory (pure)
streams.py    which records of two ends are of one stream (pure)
news.py       which estimates are news to the scheduler (pure)
nic.py        the counters of this machine's network interface
service.py    the shell
"""
