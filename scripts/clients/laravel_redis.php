<?php
// Laravel's client, cache, locks, limiters and queue, by phpredis and by Predis.

require_once 'Illuminate/Redis/autoload.php';
require_once 'Illuminate/Cache/autoload.php';
require_once 'Illuminate/Queue/autoload.php';
require_once 'Predis/autoload.php';
require __DIR__ . '/checks.php';

use Illuminate\Cache\RateLimiter;
use Illuminate\Cache\RedisStore;
use Illuminate\Cache\Repository;
use Illuminate\Container\Container;
use Illuminate\Queue\RedisQueue;
use Illuminate\Redis\RedisManager;

foreach (['phpredis', 'predis'] as $client) {
    $server = ['host' => $host, 'port' => $port, 'password' => $password];
    $app = new Container();
    $redis = new RedisManager($app, $client, [
        'options' => ['prefix' => 'app:'],
        'default' => $server + ['database' => 0],
        'cache' => $server + ['database' => 1],
    ]);
    $default = $redis->connection();
    $default->flushdb();
    $default->set('key', "v\0\xff");
    check("$client, a value is read back", $default->get('key') === "v\0\xff");
    check("$client, a prefix", (int) $default->exists('key'), 1);
    $default->set('short', 1, 'EX', 60, 'NX');
    check("$client, options of SET", $default->ttl('short') > 50);
    $default->hmset('hash', ['a' => 1, 'b' => 2]);
    check("$client, a hash", $default->hgetall('hash'), ['a' => '1', 'b' => '2']);
    $default->zadd('ranks', 1, 'one');
    $default->zadd('ranks', 2, 'two');
    check("$client, a sorted set", $default->zrange('ranks', 0, -1), ['one', 'two']);
    check("$client, a pipeline", count($default->pipeline(function ($pipe) {
        for ($n = 0; $n < 500; $n++) {
            $pipe->incr('sum');
        }
    })), 500);
    check("$client, a transaction", array_map('strval', $default->transaction(function ($tx) {
        $tx->incr('t');
        $tx->incr('t');
    })), ['1', '2']);
    check("$client, a script",
        $default->eval('return {KEYS[1], ARGV[1]}', 1, 'k', 'a')[1], 'a');
    $admitted = 0;
    for ($n = 0; $n < 8; $n++) {
        $default->throttle('limit')->block(0)->allow(5)->every(60)->then(
            function () use (&$admitted) {
                $admitted++;
            },
            function () {
            }
        );
    }
    check("$client, a limiter by time", $admitted, 5);
    $inner = null;
    $default->funnel('narrow')->block(0)->limit(1)->then(function () use ($default, &$inner) {
        $default->funnel('narrow')->block(0)->limit(1)->then(
            function () use (&$inner) {
                $inner = 'in';
            },
            function () use (&$inner) {
                $inner = 'out';
            }
        );
    });
    check("$client, a limiter of how many at once", $inner, 'out');

    $cache = new Repository(new RedisStore($redis, 'cache:', 'cache'));
    $cache->flush();
    $value = ['words' => array_fill(0, 1000, 'a'), 'number' => 1];
    $cache->put('key', $value, 60);
    check("$client, the cache reads back", $cache->get('key'), $value);
    check("$client, a value is added once", [$cache->add('once', 1, 60), $cache->add('once', 2, 60),
        (int) $cache->get('once')], [true, false, 1]);
    check("$client, what is missing is filled", [$cache->remember('f', 60, fn () => 'x'),
        $cache->get('f')], ['x', 'x']);
    $cache->put('n', 1, 60);
    check("$client, numbers are counted", [(int) $cache->increment('n', 4),
        (int) $cache->decrement('n')], [5, 4]);
    $cache->putMany(['a' => 1, 'b' => 2], 60);
    check("$client, many", array_map('intval', $cache->many(['a', 'b'])), ['a' => 1, 'b' => 2]);
    $cache->put('brief', 1, 1);
    check("$client, a value expires", until(fn () => $cache->get('brief') === null));
    $cache->tags(['people', 'artists'])->put('tagged', 'x', 60);
    $before = $cache->tags(['people', 'artists'])->get('tagged');
    $cache->tags('people')->flush();
    check("$client, values of a tag are flushed",
        [$before, $cache->tags(['people', 'artists'])->get('tagged')], ['x', null]);
    $lock = $cache->lock('lock', 10);
    check("$client, a lock is held by one",
        [$lock->get(), $cache->lock('lock', 10)->get(), $lock->release(),
            $cache->lock('lock', 10)->get()], [true, false, true, true]);
    $limiter = new RateLimiter($cache);
    $hits = 0;
    while (!$limiter->tooManyAttempts('login', 5)) {
        $limiter->hit('login', 60);
        $hits++;
    }
    check("$client, attempts are limited", $hits, 5);
    $cache->flush();
    check("$client, the cache is flushed", $cache->get('key'), null);

    $queue = new RedisQueue($redis, 'jobs', null, 1);
    $queue->setContainer($app);
    for ($n = 0; $n < 50; $n++) {
        $queue->pushRaw(json_encode(['id' => "$n", 'attempts' => 0, 'job' => 'x']));
    }
    check("$client, jobs are queued", $queue->size(), 50);
    $order = [];
    for ($n = 0; $n < 49; $n++) {
        $job = $queue->pop();
        $order[] = (int) $job->getJobId();
        $job->delete();
    }
    check("$client, and taken in order", $order, range(0, 48));
    $lost = $queue->pop();
    check("$client, a job that was not finished comes back",
        until(fn () => ($again = $queue->pop()) ? $again->attempts() : 0), 2);
    $queue->clear('jobs');
    $released = $queue->pushRaw(json_encode(['id' => 'r', 'attempts' => 0, 'job' => 'x']));
    $queue->pop()->release(1);
    check("$client, a job that is released waits", [$queue->pop(),
        until(fn () => ($again = $queue->pop()) ? $again->getJobId() : null)], [null, 'r']);
    check("$client, the queue is cleared", [$queue->clear('jobs') >= 0, $queue->size()], [true, 0]);
    $large = json_encode(['id' => 'l', 'attempts' => 0, 'job' => str_repeat('x', 100000)]);
    try {
        $queue->pushRaw($large);
        // An error of phpredis is told to those who ask for it.
        $job = $queue->pop();
        $found = $job ? strlen(json_decode($job->getRawBody())->job)
            : $default->client()->getLastError();
    } catch (Throwable $error) {
        $found = $error->getMessage();
    }
    check("$client, a job of 100,000 bytes is reserved", $found, 100000);
}
