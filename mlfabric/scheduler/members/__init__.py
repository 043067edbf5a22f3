"""Who is here, who may come, which model lives where, and how jobs and models end."""
