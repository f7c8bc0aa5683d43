"""What happens before what: races, proxies, fences, mbarriers and bytes in flight."""
