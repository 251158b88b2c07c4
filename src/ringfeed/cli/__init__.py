"""The command `ringfeed`: plan (memory), profile (where a sample's time goes), top (a running loader, live)."""
