//! A router that runs.

use super::core::Router;
use super::cx::{self, Cx};
use super::thread::Thread;
use crate::Log;
use crate::args::{ArgCx, HandlerCall};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Which router runs, for those who look at it from other threads.
#[derive(Clone)]
pub struct Current(Arc<Mutex<Arc<Router>>>);

impl Current {
    /// The router that runs now.
    pub fn router(&self) -> Arc<Router> {
        Arc::clone(&self.0.lock().expect("no panic in it"))
    }
}

/// A router with its threads.
pub struct Running {
    pub(super) router: Arc<Router>,
    pub(super) threads: Vec<Thread>,
    current: Current,
}

impl Running {
    pub(super) fn new(router: Arc<Router>, threads: Vec<Thread>) -> Self {
        let current = Current(Arc::new(Mutex::new(Arc::clone(&router))));
        Self { router, threads, current }
    }

    /// Which router runs, for other threads.
    pub fn current(&self) -> &Current {
        &self.current
    }

    /// The router.
    pub fn router(&self) -> &Arc<Router> {
        &self.router
    }

    /// Where lines for people, and what is printed, go from now on.
    pub fn listen(&self, say: impl FnMut(&str) + Send + 'static, print: impl FnMut(&str) + Send + 'static) {
        *self.router.say.lock().expect("no panic in it") = Box::new(say);
        *self.router.print.lock().expect("no panic in it") = Box::new(print);
    }

    /// Runs until the router is stopped, and nobody wants it to go on.
    pub fn run(&mut self) {
        loop {
            self.run_threads();
            if !self.goes_on() {
                return;
            }
        }
    }

    fn run_threads(&mut self) {
        let (first, others) = self.threads.split_first_mut().expect("a router has a thread");
        let router = &*self.router;
        std::thread::scope(|scope| {
            for thread in others {
                scope.spawn(|| {
                    pin(router, thread);
                    thread.run(router);
                });
            }
            pin(router, first);
            first.run(router);
        });
    }

    /// The router has stopped: whether another one takes its place, or the element that drives it lets it go on, or has another
    /// one take its place.
    fn goes_on(&mut self) -> bool {
        self.swap() || self.ask_driver() || self.swap()
    }

    /// Another router takes this one's place, if there is one. What is this one now ends.
    fn swap(&mut self) -> bool {
        let Some(next) = self.router.take_next() else { return false };
        let mut next = *next.downcast::<Self>().expect("only routers take the place of others");
        next.take_state(&self.router);
        for (old, new) in [(&self.router.say, &next.router.say), (&self.router.print, &next.router.print)] {
            std::mem::swap(&mut *old.lock().expect("no panic in it"), &mut *new.lock().expect("no panic in it"));
        }
        std::mem::swap(&mut self.router, &mut next.router);
        std::mem::swap(&mut self.threads, &mut next.threads);
        *self.current.0.lock().expect("no panic in it") = Arc::clone(&self.router);
        if next.router.has_ended() {
            self.router.end();
        }
        true
    }

    /// Elements take what those of the same name have in a router that has stopped.
    fn take_state(&mut self, old: &Router) {
        let (router, mut log) = (Arc::clone(&self.router), Log::new());
        for element in 0..router.len() {
            let Some(from) = old.find(router.name(element)) else { continue };
            let context = format!("While hot-swapping state into '{}':", router.declaration(element));
            log.within(router.landmark(element), context, |log| {
                self.enter(element, |cx| {
                    let mut from = old.slots[from].enter(0).expect("nobody is in it");
                    let mut into = router.slots[element].enter(0).expect("nobody is in it");
                    into.take_state(cx, &mut *from, log);
                });
            });
        }
        log.to_string().lines().for_each(|line| old.say(line));
    }

    /// The router has stopped: whether the element that drives it lets it go on. It is asked for each of several stops of
    /// one moment, as long as it answers one.
    fn ask_driver(&mut self) -> bool {
        let Some(driver) = *self.router.driver.lock().expect("no panic in it") else { return false };
        let router = &*self.router;
        loop {
            let before = router.runcount();
            self.threads[0].root(router, driver, |cx| {
                let Some(mut slot) = router.slots[driver].enter(0) else { return };
                slot.stopped(cx);
            });
            if !router.is_stopping() || router.runcount() <= before {
                return !router.is_stopping();
            }
        }
    }

    /// Runs until nothing is left to do, now or by a timer, or the router is stopped, for at most so many turns. For tests,
    /// and where a router is part of another program.
    pub fn run_for(&mut self, turns: usize) {
        for _ in 0..turns {
            let router = &*self.router;
            if router.is_stopping() && !self.goes_on() {
                return;
            }
            let router = &*self.router;
            self.threads.iter_mut().for_each(|thread| thread.turn(router, Duration::ZERO));
            if self.threads.iter_mut().all(|thread| thread.is_done(router)) {
                return;
            }
        }
    }

    /// Runs `work` as if an element did it, whichever that is: for handlers, and for tests.
    pub fn enter<R>(&mut self, element: usize, work: impl FnOnce(&mut Cx<'_>) -> R) -> R {
        let thread = &mut self.threads[0];
        thread.now = self.router.clock.now();
        thread.root(&self.router, element, work)
    }

    /// Reads a handler: `element.handler`, or `handler` of the router.
    pub fn read(&mut self, name: &str) -> Result<String, String> {
        let (name, argument) = name.split_once(' ').unwrap_or((name, ""));
        let call = self.call(name)?;
        self.enter(0, |cx| cx::read(cx, call.element, &call.handler, argument))
    }

    /// Writes a handler.
    pub fn write(&mut self, name: &str, value: &str) -> Result<(), String> {
        let call = self.call(name)?;
        self.enter(0, |cx| cx::write(cx, call.element, &call.handler, value))
    }

    fn call(&self, name: &str) -> Result<HandlerCall, String> {
        let cx = ArgCx { elements: &*self.router, names: &self.router.names, element: "" };
        crate::args::Arg::parse(name, &cx)
    }
}

/// Gives a thread its processor. It runs anywhere where it cannot have it.
fn pin(router: &Router, thread: &Thread) {
    let Some(first) = router.affinity else { return };
    let (mut cpus, cpu) = (rustix::thread::CpuSet::new(), first + thread.number as usize);
    if cpu < rustix::thread::CpuSet::MAX_CPU {
        cpus.set(cpu);
    }
    if let Err(error) = rustix::thread::sched_setaffinity(None, &cpus) {
        router.say(format_args!("thread {}: processor {cpu}: {error}", thread.number));
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let router = Arc::clone(&self.router);
        for element in (0..router.len()).rev() {
            self.enter(element, |cx| {
                if let Some(mut slot) = router.slots[element].enter(0) {
                    slot.cleanup(cx);
                }
            });
        }
    }
}
