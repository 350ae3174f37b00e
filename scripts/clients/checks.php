<?php
// How the PHP programs of this folder say what holds: a line for each check.

$host = getenv('SERVER_HOST');
$port = (int) getenv('SERVER_PORT');
$password = getenv('SERVER_PASSWORD');

function check(string $name, $found, $wanted = true): void
{
    if ($found === $wanted) {
        echo "ok $name\n";
    } else {
        echo "not ok $name: " . json_encode($found) . ' and not ' . json_encode($wanted) . "\n";
    }
}

// The value of a condition as soon as it is true, or the last one after that time.
function until(callable $condition, float $seconds = 30)
{
    $end = microtime(true) + $seconds;
    while (!($value = $condition()) && microtime(true) < $end) {
        usleep(20000);
    }
    return $value;
}
