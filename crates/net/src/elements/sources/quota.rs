//! How many packets a source makes, whether it does, and what happens after the last one.

use crate::Packet;
use crate::args::{Amount, Args, HandlerCall};
use crate::element::{Element, Run};
use crate::handler::Handlers;
use crate::router::Cx;

/// LIMIT, ACTIVE, STOP and END_CALL, and how far a source is.
#[derive(Clone)]
pub(super) struct Quota {
    pub(super) limit: Amount,
    pub(super) is_active: bool,
    end: Option<HandlerCall>,
    pub(super) count: u64,
    has_ended: bool,
}

impl Default for Quota {
    fn default() -> Self {
        Self { limit: Amount(None), is_active: true, end: None, count: 0, has_ended: false }
    }
}

impl Quota {
    /// Reads STOP.
    pub(super) fn stop_arg(&mut self, args: &mut Args<'_>) {
        let mut stops = false;
        args.key("STOP", &mut stops);
        if stops {
            self.end = Some(HandlerCall { element: None, handler: "stop".to_owned(), value: String::new() });
        }
    }

    /// Reads STOP and END_CALL, of which there may be one.
    pub(super) fn end_args(&mut self, args: &mut Args<'_>) {
        let mut end = None;
        args.key("END_CALL", &mut end);
        self.stop_arg(args);
        if self.end.is_some() && end.is_some() {
            args.error("END_CALL and STOP are mutually exclusive");
        }
        self.end = self.end.take().or(end);
    }

    /// Gets ready a source that sends as fast as it can. With a limit of 0, it ends at once.
    pub(super) fn begin(&self, cx: &mut Cx<'_>) -> Result<(), String> {
        self.check(cx)?;
        if cx.output_is_push(0) {
            cx.schedule();
        } else {
            cx.note(self.is_active);
        }
        Ok(())
    }

    /// Its task: a burst of packets, or the end, where there is room for some.
    pub(super) fn push(&mut self, cx: &mut Cx<'_>, burst: u64, mut make: impl FnMut(&mut Cx<'_>) -> Packet) -> Run {
        if !self.is_active {
            return Run::Stop;
        }
        if !cx.may_push(0) {
            return Run::Idle;
        }
        let burst = self.left().min(burst);
        if burst == 0 {
            self.end(cx);
            return Run::Stop;
        }
        for _ in 0..burst {
            let packet = make(cx);
            cx.emit(0, packet);
        }
        self.count += burst;
        if self.left() == 0 {
            // The end comes when the last packets have gone their way.
            cx.schedule();
            return Run::Stop;
        }
        Run::Worked
    }

    /// A packet that is pulled, or the end.
    pub(super) fn pull(&mut self, cx: &mut Cx<'_>, make: impl FnOnce(&mut Cx<'_>) -> Packet) -> Option<Packet> {
        if self.has_more() {
            self.count += 1;
            return Some(make(cx));
        }
        cx.note(false);
        if self.is_active {
            self.end(cx);
        }
        None
    }

    /// Whether the handler that is called at the end can be written.
    pub(super) fn check(&self, cx: &Cx<'_>) -> Result<(), String> {
        self.end.as_ref().map_or(Ok(()), |end| cx.check_write(end))
    }

    /// How many packets it may still make.
    pub(super) fn left(&self) -> u64 {
        self.limit.0.map_or(u64::MAX, |limit| limit.saturating_sub(self.count))
    }

    /// Whether it has a packet to make.
    pub(super) fn has_more(&self) -> bool {
        self.is_active && self.left() > 0
    }

    /// The last packet has gone its way: what is to happen then happens, once.
    pub(super) fn end(&mut self, cx: &mut Cx<'_>) {
        if !std::mem::replace(&mut self.has_ended, true)
            && let Some(end) = &self.end
        {
            cx.call_later(end);
        }
    }

    /// Goes on after a change, if there is something to do.
    pub(super) fn go_on(&mut self, cx: &mut Cx<'_>) {
        if self.left() > 0 {
            self.has_ended = false;
        }
        match cx.output_is_push(0) {
            _ if !self.has_more() => {}
            true => cx.schedule(),
            false => cx.note(true),
        }
    }

    /// Adds `reset`: it begins anew.
    pub(super) fn reset_handler<E: Element>(
        handlers: &mut Handlers,
        of: impl Fn(&mut E) -> &mut Self + Copy + Send + Sync + 'static,
    ) {
        handlers.button("reset", move |source: &mut E, cx| {
            of(source).count = 0;
            of(source).go_on(cx);
        });
    }

    /// Adds `count`, and `limit` and `active`, whose errors are Click's for the source, or those of their types.
    pub(super) fn handlers<E: Element>(
        handlers: &mut Handlers,
        of: impl Fn(&mut E) -> &mut Self + Copy + Send + Sync + 'static,
        errors: Option<[&'static str; 2]>,
    ) {
        let told = move |error: String, which: usize| errors.map_or(error, |errors| errors[which].to_owned());
        handlers.read("count", move |source: &mut E, _| of(source).count);
        handlers.read("limit", move |source: &mut E, _| of(source).limit);
        handlers.write("limit", move |source: &mut E, cx, text| {
            of(source).limit = cx.parse(text).map_err(|error| told(error, 0))?;
            of(source).go_on(cx);
            Ok(())
        });
        handlers.read("active", move |source: &mut E, _| of(source).is_active);
        handlers.write("active", move |source: &mut E, cx, text| {
            of(source).is_active = cx.parse(text).map_err(|error| told(error, 1))?;
            of(source).go_on(cx);
            Ok(())
        });
    }
}
