"""What redis-py raises, by what it means. Whoever calls Redis catches one of these."""

import redis

RedisError = redis.RedisError
# Redis did not answer, or refused; whether it acted is unknown. redis-py wraps most of what sockets
# raise, but not all, and a time-out of asyncio is an OSError.
AWAY = (RedisError, OSError)
# Redis is not heard, and may be again.
UNHEARD = (redis.TimeoutError, redis.ConnectionError)
# Redis is heard, and will not: do this, or anything for this user.
REFUSED = redis.ResponseError
FORBIDDEN = redis.exceptions.NoPermissionError
UNWELCOME = (redis.AuthenticationError, redis.exceptions.AuthorizationError, FORBIDDEN)
