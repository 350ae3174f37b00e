//! Requests that the kernel sends again after the process that served the mount was killed. A
//! change that was already made is not made a second time: only its answer is generated again.

use std::sync::Arc;

use kvfs::Note;

use super::answers::done;
use super::{Dispatcher, Outcome, ReplyBuffer, unless_it_panics};
use crate::counters::Request;
use crate::fault;
use crate::handler::*;
use crate::kept::Kept;
use crate::wire::{self, Fields, Head};

impl<H: Handler> Dispatcher<H> {
    /// Answers a request of a mount that continues when this process is killed. A request that was
    /// already executed is not executed again.
    pub(super) fn once(
        &self,
        kept: &Arc<Kept>,
        request: Request,
        (head, fields): (&Head, Fields<'_>),
        reply: &mut ReplyBuffer,
        read_buffer: &mut [u8],
    ) -> Outcome {
        fault::point("before", head.opcode);
        let id = head.unique & !wire::UNIQUE_RESEND;
        if head.unique & wire::UNIQUE_RESEND != 0 {
            for node in kept.take_given(id) {
                self.handler.forget(node, 1);
            }
            if kept.done(id).is_some() {
                let again = || self.answer_again(request, head, fields, reply);
                return unless_it_panics("an answer from the state", again)
                    .unwrap_or_else(Outcome::Error);
            }
        }
        let noted = match request {
            Request::MkNod
            | Request::MkDir
            | Request::SymLink
            | Request::Link
            | Request::Unlink
            | Request::RmDir
            | Request::Rename
            | Request::Rename2
            | Request::SetXattr
            | Request::RemoveXattr => true,
            Request::Write => wire::appends(fields),
            _ => false,
        };
        if noted && reply.slot.is_none() {
            reply.slot = kept.slot();
        }
        match reply.slot.as_ref().filter(|_| noted).map(|slot| slot.number) {
            None => self.guarded(request, head, fields, reply, read_buffer),
            Some(slot) => kvfs::with_note(Note { slot, request: id, value: 0 }, || {
                self.guarded(request, head, fields, reply, read_buffer)
            }),
        }
    }

    /// Answers a request that a killed process executed but did not answer.
    fn answer_again(
        &self,
        request: Request,
        head: &Head,
        mut f: Fields<'_>,
        reply: &mut ReplyBuffer,
    ) -> Reply<Outcome> {
        match request {
            Request::MkNod => drop((f.u32()?, f.u32()?, f.u32()?, f.u32()?)),
            Request::MkDir | Request::Link => drop(f.u64()?),
            Request::SymLink => {}
            Request::Write => {
                let (_fh, _offset, size) = (f.u64()?, f.u64()?, f.u32()?);
                // The file may have lost set-user-ID bits.
                reply.stale_attributes.push(head.node);
                reply.answer.u32(size).u32(0);
                return Ok(Outcome::Answer);
            }
            _ => return done(Ok(())),
        }
        let made = self.handler.lookup(head.node, f.name()?)?.ok_or(Errno(libc::ENOENT))?;
        Ok(self.entry(reply, &made))
    }
}
