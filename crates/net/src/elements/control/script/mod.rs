//! Script and DriverManager: instructions that read and write handlers.
//!
//! `Script(INSTRUCTION, …, [TYPE ACTIVE | PASSIVE | DRIVER | PACKET | SIGNAL SIGNO…])`, `DriverManager(INSTRUCTION, …)`: no
//! ports. An active script runs when the router starts, a passive one when its `run` handler is called, a driver when the
//! router stops, and a signal script when this process gets a signal. DriverManager is a driver. A packet script has inputs and
//! outputs, push or pull, and runs for each packet; `$input` is where it came in, what the script returns is where it leaves (0
//! without a `return`), and `exit` drops it. A script with inputs is one.
//!
//! ```text
//!   set VAR TEXT, init VAR TEXT             a variable, each time, or once at the start; export VAR TEXT: a handler, too
//!   print [>FILE | >>FILE] TEXT | HANDLER   to standard output, or a file; printn without a newline
//!   save HANDLER FILE, append HANDLER FILE  the same
//!   read HANDLER [ARG]                      prints name and value on standard error
//!   write HANDLER [ARG]                     $? is 0 if that went well
//!   wait TIME, pause [N]                    until then; until N steps were made
//!   label L, goto L [CONDITION], loop       also `goto begin`, `loop`, `end`, `exit`, `stop`, `error`
//!   return [VALUE], error [TEXT], end, exit, stop
//! ```
//!
//! Texts have `$x`, `${x}` and `$(HANDLER ARG…)` replaced; forms with `q` at the end (`setq`) take quotes off afterwards.
//! Handlers: `run` (r/w), `step`, `goto`; `get VAR`, `shift VAR` (r), `set VAR TEXT` (w); and functions: `add`, `sub`, `mul`,
//! `div`, `idiv`, `mod`, `rem`, `neg`, `abs`, `min`, `max`, `lt`, `le`, `eq`, `ne`, `ge`, `gt`, `not`, `and`, `or`, `nand`, `nor`,
//! `if`, `in`, `first`, `length`, `unquote`, `sprintf`, `htons`, `htonl`, `ntohs`, `ntohl`, `random`, `now`, `readable`,
//! `writable`.
//!
//! Click's PROXY scripts, and its functions `cat` and `kill`, are not there.
//!
//! The state of a script is not the element's: handlers that a script calls may call it, and so nobody holds it while an
//! instruction does its work.

mod machine;
mod program;
#[cfg(test)]
mod tests;

use super::functions::FUNCTIONS;
use crate::Packet;
use crate::args::{Arg, ArgCx, Args, Failed, HandlerCall};
use crate::element::{Element, Interest};
use crate::handler::{Handler, Handlers};
use crate::lang::config::{first_word, split_words};
use crate::router::Cx;
use machine::{Beginning, Machine, Step};
use program::Program;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::Arc;

/// When a script runs.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
enum Kind {
    #[default]
    Active,
    Passive,
    Driver,
    Packet,
    Signal(Vec<i32>),
}

impl Arg for Kind {
    fn parse(text: &str, _: &ArgCx<'_>) -> Result<Self, String> {
        let words = split_words(text);
        match words.iter().map(String::as_str).collect::<Vec<_>>()[..] {
            ["ACTIVE"] => Ok(Self::Active),
            ["PASSIVE"] => Ok(Self::Passive),
            ["DRIVER"] => Ok(Self::Driver),
            ["PACKET"] => Ok(Self::Packet),
            ["SIGNAL", first, ref rest @ ..] => {
                let numbers: Option<Vec<_>> = std::iter::once(first).chain(rest.iter().copied()).map(signal).collect();
                numbers.map(Self::Signal).ok_or_else(|| "bad signal number".to_owned())
            }
            ["SIGNAL"] => Err("bad signal number".to_owned()),
            _ => Err("bad TYPE; expected 'ACTIVE', 'PACKET', 'PASSIVE', 'DRIVER', or 'SIGNAL'".to_owned()),
        }
    }
}

/// What a script that nobody called says of its end.
fn said<T>(cx: &Cx<'_>, done: Result<T, String>) {
    if let Err(error) = done
        && !error.is_empty()
    {
        cx.say(format_args!("While executing '{}':\n  {error}", cx.declaration()));
    }
}

fn signal(name: &str) -> Option<i32> {
    let known = [
        ("ABRT", libc::SIGABRT),
        ("HUP", libc::SIGHUP),
        ("INT", libc::SIGINT),
        ("PIPE", libc::SIGPIPE),
        ("QUIT", libc::SIGQUIT),
        ("TERM", libc::SIGTERM),
        ("TSTP", libc::SIGTSTP),
        ("USR1", libc::SIGUSR1),
        ("USR2", libc::SIGUSR2),
    ];
    let number = name.parse().ok().filter(|number| (1..32).contains(number));
    known.iter().find(|(other, _)| *other == name).map(|(_, number)| *number).or(number)
}

/// The element.
#[derive(Default)]
pub(crate) struct Script {
    kind: Kind,
    machine: Arc<Machine>,
    /// Where signals are read.
    signals: Option<OwnedFd>,
}

impl Element for Script {
    fn configure(&mut self, args: &mut Args<'_>) -> Result<(), Failed> {
        let elements = args.cx().elements;
        let has_inputs = elements.number(args.cx().element).is_some_and(|number| elements.ports(number).0 > 0);
        if !args.has_key("TYPE", &mut self.kind) && has_inputs {
            self.kind = Kind::Packet;
        }
        if has_inputs && self.kind != Kind::Packet {
            args.error("only a script of TYPE PACKET has inputs");
        }
        let is_driver = self.kind == Kind::Driver;
        match Program::compile(&args.rest(), is_driver) {
            Ok(program) => self.machine = Arc::new(Machine::new(program)),
            Err(errors) => errors.into_iter().for_each(|error| _ = args.error(error)),
        }
        args.finish()
    }

    fn initialize(&mut self, cx: &mut Cx<'_>) -> Result<(), String> {
        self.machine.begin(cx);
        match &self.kind {
            Kind::Passive | Kind::Packet => {}
            Kind::Signal(_) => self.listen(cx)?,
            Kind::Driver => {
                if !cx.drive() {
                    return Err("router has more than one Script element of TYPE DRIVER".to_owned());
                }
                match self.machine.beginning() {
                    Beginning::Waits(time) => cx.timer_after(0, time),
                    Beginning::Pauses => {}
                    // Asked at once what comes first.
                    Beginning::Runs => cx.stop_driver(),
                }
            }
            Kind::Active => match self.machine.beginning() {
                Beginning::Waits(time) => cx.timer_after(0, time),
                Beginning::Pauses => {}
                Beginning::Runs => cx.timer_after(0, crate::Timestamp::ZERO),
            },
        }
        Ok(())
    }

    fn push(&mut self, cx: &mut Cx<'_>, port: usize, packet: Packet) {
        if let Some(output) = self.machine.run_packet(cx, port) {
            cx.emit_checked(output, packet);
        }
    }

    fn pull(&mut self, cx: &mut Cx<'_>, port: usize) -> Option<Packet> {
        let packet = cx.pull(port)?;
        let output = self.machine.run_packet(cx, port)?;
        if output == port {
            return Some(packet);
        }
        if cx.output_is_push(output) {
            cx.emit(output, packet);
        }
        None
    }

    fn observes(&self) -> bool {
        self.kind == Kind::Packet
    }

    fn run_timer(&mut self, cx: &mut Cx<'_>, _: usize) {
        let done = self.machine.step(cx, Step::Timer);
        said(cx, done);
    }

    fn stopped(&mut self, cx: &mut Cx<'_>) {
        let done = self.machine.step(cx, Step::Router);
        said(cx, done);
    }

    fn selected(&mut self, cx: &mut Cx<'_>, fd: RawFd, _: Interest) {
        let mut info = [0u8; size_of::<libc::signalfd_siginfo>()];
        // SAFETY: as many bytes as said, which are alive.
        while unsafe { libc::read(fd, info.as_mut_ptr().cast(), info.len()) } == info.len() as isize {
            if !self.machine.is_waiting() {
                let done = self.machine.run(cx, "");
                said(cx, done);
                if !self.machine.ends_for_good() {
                    continue;
                }
                cx.select(fd, Interest::default());
                self.ignore();
                return;
            }
        }
    }

    fn handlers(&self, handlers: &mut Handlers) {
        let machine = || Arc::clone(&self.machine);
        let (run, read, step, goto) = (machine(), machine(), machine(), machine());
        handlers.free_write("run", move |cx, text| run.run(cx, text).map(|_| ()));
        handlers.free_read("run", move |cx, text| read.run(cx, text));
        handlers.free_write("step", move |cx, text| match text.trim() {
            "router" => step.step(cx, Step::Router),
            "" => step.step(cx, Step::Times(1)),
            times => match cx.parse::<u32>(times) {
                Ok(times) => step.step(cx, Step::Times(times)),
                Err(_) => Err("syntax error".to_owned()),
            },
        });
        handlers.free_write("goto", move |cx, text| goto.goto(cx, text.trim()));
        for (name, function) in FUNCTIONS {
            handlers.free_read(name, move |_, text| function(text));
        }
        functions(handlers);
        let (get, set, shift) = (machine(), machine(), machine());
        handlers.free_read("get", move |_, name| Ok(get.variable(name.trim()).unwrap_or_default()));
        handlers.free_read("shift", move |_, name| Ok(shift.shift(name.trim())));
        handlers.free_write("set", move |_, text| {
            let (name, value) = first_word(text.trim());
            set.set(name, value.to_owned());
            Ok(())
        });
        for name in self.machine.exported() {
            let (machine, variable) = (machine(), name.to_owned());
            handlers.free_read(name, move |_, _| Ok(machine.variable(&variable).unwrap_or_default()));
        }
    }

    fn cleanup(&mut self, _: &mut Cx<'_>) {
        self.ignore();
    }
}

/// Functions that look at the router.
fn functions(handlers: &mut Handlers) {
    handlers.free_read("now", |cx, _| Ok(cx.now().to_string()));
    handlers.free_read("random", |cx, text| {
        let numbers = split_words(text).iter().map(|word| cx.parse::<i64>(word)).collect::<Result<Vec<_>, _>>();
        let (low, high) = match numbers.as_deref() {
            Ok([]) => (0, i64::from(i32::MAX)),
            Ok([count]) => (0, count.saturating_sub(1)),
            Ok([one, other]) => (*one.min(other), *one.max(other)),
            _ => return Err("syntax error".to_owned()),
        };
        Ok(cx.rng().i64(low..=high.max(low)).to_string())
    });
    for (name, can) in [
        ("readable", (|handler: &Handler| handler.read.is_some()) as fn(&Handler) -> bool),
        ("writable", |handler| handler.write.is_some()),
    ] {
        handlers.free_read(name, move |cx, text| {
            let fine = split_words(text).iter().all(|name| {
                let call = HandlerCall::parse(name, &cx.arg_cx()).ok();
                let of = |call: HandlerCall| {
                    let handlers = cx.router().handlers(call.element.unwrap_or(cx.id()))?;
                    handlers.get(&call.handler).map(can)
                };
                call.and_then(of) == Some(true)
            });
            Ok(fine.to_string())
        });
    }
}

impl Script {
    fn set(&self) -> libc::sigset_t {
        // SAFETY: filled by `sigemptyset`, and with numbers of signals, in memory of this function's.
        unsafe {
            let mut set = std::mem::zeroed();
            libc::sigemptyset(&raw mut set);
            if let Kind::Signal(numbers) = &self.kind {
                for number in numbers {
                    libc::sigaddset(&raw mut set, *number);
                }
            }
            set
        }
    }

    /// Signals are read from a descriptor, and do not interrupt this thread or those that it starts.
    fn listen(&mut self, cx: &mut Cx<'_>) -> Result<(), String> {
        let set = self.set();
        // SAFETY: a set that is alive; no memory is kept.
        let fd = unsafe {
            libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut());
            libc::signalfd(-1, &raw const set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK)
        };
        if fd < 0 {
            return Err(format!("signalfd: {}", std::io::Error::last_os_error()));
        }
        // SAFETY: fresh, and nobody else's.
        self.signals = Some(unsafe { OwnedFd::from_raw_fd(fd) });
        cx.select(fd, Interest { read: true, write: false });
        Ok(())
    }

    /// Signals do again what they did.
    fn ignore(&mut self) {
        if let Some(fd) = self.signals.take() {
            let set = self.set();
            // SAFETY: a set that is alive.
            unsafe { libc::pthread_sigmask(libc::SIG_UNBLOCK, &raw const set, std::ptr::null_mut()) };
            debug_assert!(fd.as_raw_fd() >= 0);
        }
    }
}

/// A script that drives.
pub(crate) struct DriverManager(Script);

impl Default for DriverManager {
    fn default() -> Self {
        Self(Script { kind: Kind::Driver, ..Script::default() })
    }
}

impl Element for DriverManager {
    fn configure(&mut self, args: &mut Args<'_>) -> Result<(), Failed> {
        self.0.configure(args)
    }
    fn initialize(&mut self, cx: &mut Cx<'_>) -> Result<(), String> {
        self.0.initialize(cx)
    }
    fn run_timer(&mut self, cx: &mut Cx<'_>, timer: usize) {
        self.0.run_timer(cx, timer);
    }
    fn stopped(&mut self, cx: &mut Cx<'_>) {
        self.0.stopped(cx);
    }
    fn selected(&mut self, cx: &mut Cx<'_>, fd: RawFd, ready: Interest) {
        self.0.selected(cx, fd, ready);
    }
    fn handlers(&self, handlers: &mut Handlers) {
        self.0.handlers(handlers);
    }
    fn cleanup(&mut self, cx: &mut Cx<'_>) {
        self.0.cleanup(cx);
    }
}
