//! Rates on a terminal, in place, or block after block in a file or a pipe. A thread of its own shows them.

use super::page::{Room, page};
use super::rates::Rates;
use super::sample::{Sample, Watch};
use std::io::{IsTerminal, Write};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Another screen, without a cursor; and back.
const ENTER: &str = "\x1b[?1049h\x1b[?25l";
const LEAVE: &str = "\x1b[?25h\x1b[?1049l";
/// How long the end waits for somebody who does not read.
const PATIENCE: Duration = Duration::from_secs(1);

/// Rates that are shown until it is dropped or finished.
pub struct Screen {
    end: Option<Sender<Sample>>,
    over: Receiver<()>,
    thread: Option<JoinHandle<()>>,
}

/// What is shown, and where.
struct Shown<W> {
    out: W,
    is_page: bool,
    /// Shown beside the time.
    note: String,
    begin: Sample,
    last: Sample,
}

impl Screen {
    /// Shows rates on standard output, once in each `interval`. `note` is a word for people beside them.
    pub fn start(mut watch: Watch, interval: Duration, note: String) -> std::io::Result<Self> {
        let out = std::io::stdout();
        let is_page = out.is_terminal() && std::env::var_os("TERM").is_some_and(|term| term != "dumb");
        let begin = watch.nothing();
        let shown = Shown { out, is_page, note, last: begin.clone(), begin };
        let (end, ending) = channel();
        let (done, over) = channel();
        let run = move || {
            shown.run(watch, interval, &ending);
            drop(done);
        };
        let thread = std::thread::Builder::new().name("net-stats".to_owned()).spawn(run)?;
        Ok(Self { end: Some(end), over, thread: Some(thread) })
    }

    /// Shows what passed from the beginning to the end, and leaves the screen as it was.
    pub fn finish(mut self, sample: Sample) {
        if let Some(end) = &self.end {
            let _ = end.send(sample);
        }
        self.stop();
    }

    fn stop(&mut self) {
        self.end = None;
        let _ = self.over.recv_timeout(PATIENCE);
        let Some(thread) = self.thread.take() else { return };
        if thread.is_finished() {
            let _ = thread.join();
        }
    }

    /// What makes a terminal one for lines again, whatever is shown.
    pub fn restore() {
        let mut out = std::io::stdout();
        if out.is_terminal() {
            let _ = out.write_all(LEAVE.as_bytes()).and_then(|()| out.flush());
        }
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        self.stop();
    }
}

impl<W: Write + std::os::fd::AsFd> Shown<W> {
    fn run(mut self, mut watch: Watch, interval: Duration, ending: &Receiver<Sample>) {
        if self.is_page && self.write(ENTER).is_err() {
            return;
        }
        let mut next = Instant::now() + interval;
        let last = loop {
            match ending.recv_timeout(next.saturating_duration_since(Instant::now())) {
                Ok(last) => break Some(last),
                Err(RecvTimeoutError::Disconnected) => break None,
                Err(RecvTimeoutError::Timeout) => {}
            }
            // Whoever was stopped for a while has nothing to make up for.
            next = (next + interval).max(Instant::now());
            let sample = watch.sample();
            if self.show(sample).is_err() {
                break None;
            }
        };
        if self.is_page {
            let _ = self.write(LEAVE);
        }
        if let Some(last) = last {
            let _ = self.show_all(&last);
        }
    }

    /// Shows what passed since the last time.
    fn show(&mut self, sample: Sample) -> std::io::Result<()> {
        let text = if let Some(rates) = Rates::between(&self.last, &sample) {
            page(&self.title(&sample), &sample, &rates, self.room())
        } else {
            // Another router runs now.
            self.begin = sample.clone();
            String::new()
        };
        self.last = sample;
        if self.is_page {
            // Each line is cleared to its end, then all that is below.
            let lines = text.trim_end().replace('\n', "\x1b[K\n");
            self.write(&format!("\x1b[H{lines}\x1b[K\x1b[J"))
        } else {
            self.write(&(text + "\n"))
        }
    }

    /// Shows what passed since the beginning.
    fn show_all(&mut self, sample: &Sample) -> std::io::Result<()> {
        let Some(rates) = Rates::between(&self.begin, sample) else { return Ok(()) };
        let text = page(&format!("all of it: {}", self.title(sample)), sample, &rates, Room::default());
        self.write(&text)
    }

    fn title(&self, sample: &Sample) -> String {
        let up = sample.at.saturating_duration_since(self.begin.at).as_secs_f64();
        let count = sample.elements.len();
        let note = if self.note.is_empty() { String::new() } else { format!(", {}", self.note) };
        format!("{up:.1} s, {count} element{}{note}", if count == 1 { "" } else { "s" })
    }

    fn room(&self) -> Room {
        if !self.is_page {
            return Room::default();
        }
        let size = rustix::termios::tcgetwinsize(&self.out).ok().filter(|size| size.ws_col > 0 && size.ws_row > 0);
        let (width, height) = size.map_or((80, 24), |size| (size.ws_col, size.ws_row));
        Room { width: Some(usize::from(width)), height: Some(usize::from(height)) }
    }

    fn write(&mut self, text: &str) -> std::io::Result<()> {
        self.out.write_all(text.as_bytes())?;
        self.out.flush()
    }
}
