"""The errors of redis-py by their meaning; callers of Redis catch one of these."""

import redis

RedisError = redis.RedisError
# Redis did not answer, or refused; it may have acted or not. redis-py wraps most errors of sockets,
# but not all, and a time-out of asyncio is an OSError.
AWAY = (RedisError, OSError)
# Redis is not heard, and may be again.
UNHEARD = (redis.TimeoutError, redis.ConnectionError)
# Redis is heard, and will not: do this, or anything for this user.
REFUSED = redis.ResponseError
FORBIDDEN = redis.exceptions.NoPermissionError
UNWELCOME = (redis.AuthenticationError, redis.exceptions.AuthorizationError, FORBIDDEN)
