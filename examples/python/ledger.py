#!/usr/bin/env python3
"""A ledger: balances are keys, receipts are files, and a payment is one transaction over both.

    python3 ledger.py shop.kvfs        # a store of this program's own
    python3 ledger.py /mnt             # a store that is mounted, with others in it

It takes the package in bindings/python. `payment` may be called by any number of threads, and on a
mounted store by any number of processes: no payment is lost, and none is made halfway.
"""

import os
import sys

import kvfs


class Refused(Exception):
    """The account has too little; nothing was changed."""


def payment(store, payer, payee, amount):
    def pay(t):
        accounts = t["accounts"]
        balance = int(accounts.get(payer, b"0"))
        if balance < amount:
            raise Refused(f"{payer.decode()} has {balance}")
        accounts[payer] = b"%d" % (balance - amount)
        accounts[payee] = b"%d" % (int(accounts.get(payee, b"0")) + amount)
        number = len(t.fs.listdir("receipts")) + 1
        receipt = f"{payer.decode()} pays {amount} to {payee.decode()}"
        t.fs.write_text(f"receipts/{number:04}", receipt)
        return number

    # Begun again for as long as others change the same accounts.
    return store.run(pay, "ser", sync=True)


def main(store):
    store.fs.makedirs("receipts", exist_ok=True)
    store["accounts"].update({b"ann": b"100", b"bob": b"5"})
    payment(store, b"ann", b"bob", 10)
    try:
        payment(store, b"bob", b"ann", 25)
    except Refused as refused:
        print("refused:", refused)
    for name, balance in store["accounts"].items():
        print(f"{name.decode()} has {balance.decode()}")
    for name in store.fs.listdir("receipts"):
        print(name, store.fs.read_text(f"receipts/{name}"))


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(f"usage: {sys.argv[0]} STORE|MOUNT")
    where = sys.argv[1]
    with kvfs.connect(where) if os.path.isdir(where) else kvfs.open(where) as opened:
        main(opened)
