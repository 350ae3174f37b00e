//! `SUBSCRIBE` and its variants, `PUBLISH`, and `PUBSUB`: commands for channels.

use bytes::Bytes;

use super::{is, unknown_subcommand};
use crate::channels::{By, To};
use crate::effects::Effect;
use crate::failure::{Failure, Outcome};
use crate::names::Compared;
use crate::output::Output;
use crate::request::Arguments;
use crate::session::Session;

pub const PUBSUB_USAGE: &str = "CHANNELS [pattern] | NUMSUB [channel ...] | NUMPAT | SHARDCHANNELS [pattern] | SHARDNUMSUB [channel ...]";

pub fn subscribe(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    begin(s, args, (By::Channel, "subscribe"), out)
}
pub fn psubscribe(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    begin(s, args, (By::Pattern, "psubscribe"), out)
}
pub fn ssubscribe(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    begin(s, args, (By::Shard, "ssubscribe"), out)
}
pub fn unsubscribe(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    end(s, args, (By::Channel, "unsubscribe"), out)
}
pub fn punsubscribe(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    end(s, args, (By::Pattern, "punsubscribe"), out)
}
pub fn sunsubscribe(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    end(s, args, (By::Shard, "sunsubscribe"), out)
}

/// Confirms a subscription to a name, or the end of one, with the number of current
/// subscriptions.
fn confirm(s: &Session, (by, word): (By, &str), name: Option<&[u8]>, out: &mut Output) {
    let (all, shards) = (s.subscriptions.count(), s.subscriptions.shards.len());
    out.push(3);
    out.bulk(word.as_bytes());
    out.value(name);
    // Subscriptions to shard channels are counted separately.
    out.integer(if by == By::Shard { shards } else { all - shards } as i64);
    out.send_if_large();
}

fn begin(
    s: &mut Session,
    args: Arguments<'_>,
    (by, word): (By, &str),
    out: &mut Output,
) -> Outcome {
    for name in args.from(1) {
        match s.subscribe(by, name) {
            Ok(()) => confirm(s, (by, word), Some(name), out),
            // The preceding names have already been confirmed.
            Err(failure) => out.error(&failure.to_string()),
        }
    }
    Ok(())
}

fn end(s: &mut Session, args: Arguments<'_>, (by, word): (By, &str), out: &mut Output) -> Outcome {
    let names: Vec<Bytes> = match args.len() {
        1 => s.subscriptions.by(by).iter().cloned().collect(),
        _ => args.from(1).map(Bytes::copy_from_slice).collect(),
    };
    for name in &names {
        s.unsubscribe(by, name);
        // Messages that arrived before the end of the subscription precede its confirmation.
        s.deliver(out);
        confirm(s, (by, word), Some(name), out);
    }
    if names.is_empty() {
        confirm(s, (by, word), None, out);
    }
    Ok(())
}

/// `PUBLISH channel message`: replies with the number of receivers. In a transaction the message
/// is sent at the commit, and the reply is the number of current subscribers.
pub fn publish(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    send(s, args, To::Channel, out)
}

/// `SPUBLISH channel message`: publishes to the clients that have subscribed by `SSUBSCRIBE`.
pub fn spublish(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    send(s, args, To::Shard, out)
}

fn send(s: &Session, args: Arguments<'_>, to: To, out: &mut Output) -> Outcome {
    s.check_channel(args.at(1))?;
    let [channel, payload] = [1, 2].map(|at| Bytes::copy_from_slice(args.at(at)));
    if !s.exec.is_running() && s.joined.is_none() {
        out.integer(s.shared.channels.publish(to, &channel, &payload) as i64);
        return Ok(());
    }
    if !s.has_room_for_effect(channel.len() + payload.len()) {
        let most = s.shared.limits.effects;
        return Err(Failure::Limit(format!(
            "the messages of one transaction take more than {most} bytes: publish them behind it"
        )));
    }
    out.integer(s.shared.channels.receivers(to, &channel) as i64);
    s.settle(vec![Effect::Message { to, channel, payload }]);
    Ok(())
}

pub fn pubsub(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    let channels = &s.shared.channels;
    match (args.at(1), args.len()) {
        (c, 2 | 3) if is(c, "channels") || is(c, "shardchannels") => {
            let by = if is(c, "channels") { By::Channel } else { By::Shard };
            let (mut found, mut compared) = (Vec::new(), Compared::default());
            for name in channels.names(by) {
                s.check_stopping()?;
                let fits = match args.get(2) {
                    Some(pattern) => compared.matches(pattern, &name)?,
                    None => true,
                };
                if fits {
                    found.push(name);
                }
            }
            out.array(found.len());
            for name in found {
                out.bulk(&name);
                out.send_if_large();
            }
        }
        (c, _) if is(c, "numsub") || is(c, "shardnumsub") => {
            let by = if is(c, "numsub") { By::Channel } else { By::Shard };
            out.array((args.len() - 2) * 2);
            for name in args.from(2) {
                out.bulk(name);
                out.integer(channels.subscribers(by, name) as i64);
            }
        }
        (c, 2) if is(c, "numpat") => out.integer(channels.count(By::Pattern) as i64),
        (c, 2) if is(c, "help") => {
            out.array(1);
            out.status(&format!("PUBSUB {PUBSUB_USAGE}"));
        }
        _ => return Err(unknown_subcommand(args, "PUBSUB")),
    }
    Ok(())
}
