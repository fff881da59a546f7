"""Times as people type them: each form has one meaning, or is refused with what to write instead."""

import asyncio
from datetime import UTC, datetime
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

from tests.world.house import ANN, PROMPTS, HeldClock, house_at_work, open_house
from tests.world.model import Calls, ModelServer, Text, Use
from wintermute.errors import ToolFailed
from wintermute.tasks.due import next_due
from wintermute.tasks.parse import find_time
from wintermute.tasks.schedules import PlanRequest, apply_request

BERLIN = ZoneInfo("Europe/Berlin")
NOW = datetime(2026, 2, 27, 12, 34, tzinfo=UTC)
"""A Friday, 13:34 in Berlin."""
FORMS = """
Sat 28 Feb 09:00 = at 9 | 9am | 9 am | 9:00 | 09:00 | @9 | at nine | nine am | 9 o'clock | at 9 in the morning | 9 a.m. | 9.00 Uhr | um 9 | um neun | 9 Uhr | à 9h | à 9 heures | à neuf heures | a las 9 | a las nueve | alle 9 | alle nove | alle ore 9 | 9点 | 九点 | 上午9点 | 9時 | 午前9時 | 早上９点
Sat 28 Feb 09:00 = tomorrow 9 | tomorrow at 9 | TOMORROW AT 9 | 9am tomorrow | tomorrow morning at 9 | tmrw 9am | morgen um 9 | morgen früh um 9 | demain à 9h | demain 9h | DEMAIN À 9H | demain matin à 9h | mañana a las 9 | manana a las 9 | mañana por la mañana a las 9 | domani alle 9 | domani mattina alle 9 | 明天9点 | 明早9点 | 明天上午九点 | 明日9時 | 明日の朝9時に
Sat 28 Feb 09:00 = saturday at 9 | sat 9 | on saturday at 9am | this saturday at 9 | sa. 9:00 | samstag um 9 | am Samstag um 9 Uhr | samedi à 9h | sábado a las 9 | sabato alle 9 | 周六9点 | 土曜日9時に | 28 february at 9 | february 28 at 9 | 28.2. um 9 | 28.02.2026 9:00 | 28/2 at 9 | 2026-02-28 09:00 | 2026-02-28T09:00 | 2026-02-28T09:00+01:00 | 2月28日9点 | 2026年2月28日9時 | le 28 février à 9h | el 28 de febrero a las 9 | il 28 febbraio alle 9
Fri 27 Feb 21:30 = 9:30pm | at 9:30 pm | 21:30 | at half past nine in the evening | tonight at 9:30 | heute abend um 9:30 | um halb zehn abends | 21h30 | ce soir à 9h30 | à 9 heures et demie du soir | a las 9 y media de la noche | stasera alle 9:30 | alle nove e mezza di sera | 今晚9点半 | 晚上9点30分 | 今夜9時半 | 夜9時30分に
Fri 27 Feb 15:34 = in two hours | in 2 hours | in 2h | 2 hours from now | in 120 min | in zwei Stunden | dans 2 heures | dans deux heures | en dos horas | dentro de 2 horas | tra due ore | fra 2 ore | 两个小时后 | 2小时后 | 2時間後に
Fri 27 Feb 15:04 = in 90 minutes | in an hour and 30 minutes | in 1h30 | dans une heure et demie | in 1 hour 30 minutes | in 1 hour and half an hour | in 60 minutes and 30 minutes
Fri 27 Feb 14:04 = in half an hour | in 30 m | in einer halben Stunde | dans une demi-heure | en media hora | tra mezz'ora | 半小时后 | 30分後
Fri 06 Mar 13:34 = in a week | in 7 days | in einer Woche | dans une semaine | dans 7 jours | en una semana | tra una settimana | 一周后 | 7日後
Mon 02 Mar 09:00 = in 3 days at 9 | monday 9 | lundi à 9h | next monday at 9 | nächsten Montag um 9 | lundi prochain à 9h | el lunes que viene a las 9 | lunedì prossimo alle 9 | 下周一9点 | 来週の月曜日9時 | next week monday at 9 | monday 2 march at 9
Mon 02 Mar 08:00 = monday 8 | mon 8:00 | montag um 8 | am Mo. um 8 Uhr | lundi 8h | el lunes a las 8 | lunedì alle 8 | 周一8点 | 月曜8時
Fri 06 Mar 09:00 = fri 09:00 | am kommenden Freitag um 9 | friday at 9 | next friday at 9
Fri 27 Feb 18:30 = friday 18:30 | today 6:30pm | heute um 18:30 | aujourd'hui à 18h30 | hoy a las 18:30 | oggi alle 18:30 | 今天下午6点半 | 今日18時30分 | this evening at 6:30 | today at half past six in the evening
Sat 28 Feb 08:45 = quarter to 9 | um viertel vor neun | à neuf heures moins le quart | a las nueve menos cuarto | alle nove meno un quarto
Sat 28 Feb 09:15 = um 9 Uhr 15 | à 9h et quart | a las 9 y cuarto | alle 9 e un quarto | 9点一刻 | 9時15分
weekly on sat, sun at 09:00 = weekends at 9 | every weekend at 9 | jedes Wochenende um 9 | tous les week-ends à 9h | los fines de semana a las 9 | ogni fine settimana alle 9 | 每个周末9点 | 毎週末9時
Sat 28 Feb 12:00 = noon | tomorrow at noon | mittags um 12 | demain midi | mediodía | mezzogiorno | 中午12点 | 正午
Tue 01 Dec 09:00 = 1.12. um 9 | 1.12.2026 9:00 | 1 december at 9 | dec 1st at 9am | december 1, 2026 at 9 | 1. Dezember um 9 | le 1er décembre à 9h | el 1 de diciembre a las 9 | il 1 dicembre alle 9 | 12月1日9点 | 12月1日の9時 | 1 dec 9:00
Sun 15 Mar 09:00 = the 15th at 9 | on the 15th at 9 | le 15 à 9h | el 15 a las 9 | am 15. um 9 | 15号9点
Mon 27 Apr 13:34 = in 2 months | in zwei Monaten | dans 2 mois | 2个月后
daily at 09:00 = every day at 9 | daily 9 | every morning at 9 | jeden Tag um 9 | täglich 9:00 | jeden Morgen um 9 | tous les jours à 9h | cada día a las 9 | todos los días a las 9 | ogni giorno alle 9 | 每天9点 | 每天早上9点 | 毎日9時 | 毎朝9時に | at 9 every day
weekly on mon at 08:00 = every monday at 8 | mondays at 8 | weekly mon 8:00 | jeden Montag um 8 | montags um 8 | tous les lundis à 8h | chaque lundi à 8h | los lunes a las 8 | cada lunes a las 8 | ogni lunedì alle 8 | 每周一8点 | 每个星期一8点 | 毎週月曜8時
weekly on mon, thu at 08:00 = mon,thu 08:00 | monday and thursday at 8 | every monday and thursday at 8 | mo, do 8:00 | lundi et jeudi à 8h | cada lunes y jueves a las 8 | ogni lunedì e giovedì alle 8 | 每周一和周四8点
weekly on mon, tue, wed, thu, fri at 07:00 = weekdays at 7 | every weekday at 7 | mon-fri 7:00 | monday to friday at 7 | werktags um 7 | 工作日7点 | 平日7時
rrule FREQ=WEEKLY;INTERVAL=2;BYDAY=FR = every other friday at 9 | every 2 weeks on friday at 9 | jeden zweiten Freitag um 9 | alle zwei Wochen freitags um 9 | un vendredi sur deux à 9h | tous les deux vendredis à 9h | cada dos viernes a las 9 | ogni due venerdì alle 9 | 隔周五9点 | 每两周周五9点 | 隔週金曜9時
monthly on day 15 at 09:00 = monthly 15 9:00 | every month on the 15th at 9 | every 15th at 9 | jeden 15. um 9 | le 15 de chaque mois à 9h | el 15 de cada mes a las 9 | il 15 di ogni mese alle 9 | 每月15号9点 | 毎月15日9時
every 120 min = every 2 hours | every two hours | alle zwei Stunden | toutes les 2 heures | cada dos horas | ogni due ore | 每两小时 | 每2个小时
rrule FREQ=YEARLY;INTERVAL=1 = every year on 1 december at 9
!'1 December at 09:00' or '12 January at 09:00' = 1/12 at 9 | 1/12 9:00
!'Monday at 09:00' or 'every Monday at 09:00' = le lundi à 9h | il lunedì alle 9
!'at 09:00' or 'in 9 hours' = 9h | 9 heures
!'at 09:30' or 'at 08:30' = half nine | at half nine
!'1 March 2026 at 09:00' or '8 March 2026 at 09:00' = next sunday at 9 | nächsten Sonntag um 9
!'tomorrow at 9' = tomorrow | morgen | demain | mañana | domani | 明天 | 明日
!'Friday at 9' = friday | on friday | freitag | vendredi | viernes | 周五 | 金曜
!'every other Friday at 9' = every other friday | jeden zweiten Freitag
!'every day at 9' = daily | every morning | 毎日
!'1 December at 9' = 1/12 | 1 december | 1.12.
!2026-12-04 is a Friday = monday 4 december at 9
!has passed = this friday at 9 | this monday at 9 | diesen Montag um 9 | in 0 minutes | today 9:00 | heute um 8 | 2026-02-27T13:34
!hundred years = in 999999999 weeks | in 999999999 minutes | 9999-12-31 09:00
!None = tomorrow at ٩ | at 25 | 24:00 | 9:60 | 13am | 12 in the evening | ١٢:٣٠ | 9-10 | 9:00-10:00 | at once | pay at due date | tom\u200forrow 9 | 30 february at 9 | in a while | every first monday at 9 | after 9:30 | monday at 9 or 10 | every at 9 | in 1.5 hours | yesterday 9:00 | 9.30 | so 9 | 13/13 at 9 | next at 9 | at ten to nine | at 10 past 9 | um zehn vor neun | um fünf vor halb neun | à 9h moins 10 | a las 9 menos diez | alle 9 meno dieci | 9点三刻 | 9時10分前 | 2時間 | at nine thirty | 九点五十分 | 十点二十五分 | 九時五十分 | on the weekend at 9 | am Wochenende um 9 | 周末9点 | this week at 9 | next month at 9 | lundi en quinze à 9h | friday week at 9 | 3月二十五日9点
"""
TABLE = [
    (form.strip(), meaning)
    for meaning, forms in (line.split(" = ") for line in FORMS.strip().splitlines())
    for form in forms.split(" | ")
]


def meaning(at: str) -> str:
    """The schedule that a request of this time makes, or why it is refused."""
    try:
        made = asyncio.run(apply_request(PlanRequest.of({"at": at}), NOW, BERLIN)).schedule
    except ToolFailed as refused:
        return f"!{refused}"
    assert made is not None
    due = next_due(made, NOW, BERLIN)
    assert due is not None
    return made.describe(BERLIN) if made.recurs else f"{due.astimezone(BERLIN):%a %d %b %H:%M}"


def in_a_sentence(text: str) -> tuple[str, str | None]:
    """Read a sentence: the meaning of its time, and the rest; None: it was refused."""
    try:
        found = find_time(text, NOW, BERLIN)
    except ToolFailed as refused:
        return f"!{refused}", None
    return (meaning(found.at), found.rest) if found else ("!None", None)


@pytest.mark.parametrize(("form", "means"), TABLE)
def test_a_time_means_one_thing_or_is_refused(form: str, means: str) -> None:
    """U-010, U-011: alone, as the shell and the tool take it, and at either end of a sentence."""
    alone = "Write for example tomorrow at 9" if means == "!None" else means[1:]
    assert alone in meaning(form) if means.startswith("!") else meaning(form) == means
    for text in (f"{form} xyz", f"xyz {form}"):
        said, rest = in_a_sentence(text)
        assert said.startswith("!") if means.startswith("!") else (said, rest) == (means, "xyz")


def test_the_table_has_two_hundred_forms() -> None:
    """U-010."""
    assert len({form for form, _ in TABLE}) >= 200


def test_what_a_refusal_offers_is_read() -> None:
    """U-011: each reading means one thing."""
    for form, means in TABLE:
        if means.startswith("!'"):
            for reading in means[1:].replace("'", "").split(" or "):
                assert not meaning(reading).startswith("!"), (form, reading)


@pytest.mark.parametrize(
    ("text", "means", "rest"),
    [
        ("tomorrow call mum at 9", "Sat 28 Feb 09:00", "call mum"),
        ("every monday water the plants at 8", "weekly on mon at 08:00", "water the plants"),
        ("at 9 call mum tomorrow", "Sat 28 Feb 09:00", "call mum"),
        ("18:30 at 19:00 we eat", "Fri 27 Feb 18:30", "at 19:00 we eat"),
        ("today at 18:30 friday drinks", "Fri 27 Feb 18:30", "friday drinks"),
        ("at 8 tomorrow evening film", "Sat 28 Feb 20:00", "film"),
        ("tomorrow at 9 evening class", "Sat 28 Feb 09:00", "evening class"),
        ("tomorrow's homework at 9", "Sat 28 Feb 09:00", "tomorrow's homework"),
        ("watch the sun at 9", "Sat 28 Feb 09:00", "watch the sun"),
        ("18:30 last call for tickets", "Fri 27 Feb 18:30", "last call for tickets"),
        ("um 9 alle Fenster schließen", "Sat 28 Feb 09:00", "alle Fenster schließen"),
        ("at 9 every first monday call", "!None", None),
        ("set 2 alarms at 9", "Sat 28 Feb 09:00", "set 2 alarms"),
        ("do the dishes tomorrow at 9", "Sat 28 Feb 09:00", "do the dishes"),
        ("do the dishes at 9", "Sat 28 Feb 09:00", "do the dishes"),
        ("ask what to do at 9", "Sat 28 Feb 09:00", "ask what to do"),
        ("so Mama anrufen um 9", "!'so Mama anrufen um 9' can mean", None),
        ("Mama anrufen So um 9", "!'Mama anrufen So um 9' can mean", None),
        ("jeu de société à 9h", "!'jeu de société à 9h' can mean", None),
        ("in 3 days call mum at 9", "!'in 3 days call mum at 9' can mean", None),
        (
            "in 3 days pay 2026-03-01 09:00",
            "!'in 3 days pay 2026-03-01 09:00' can mean different times. Write 'in 3 days at 13:34' or '2026-03-01 09:00'",
            None,
        ),
        ("call mum next month on the 5th at 9", "!None", None),
        ("call mum two weeks from friday at 9", "!None", None),
        ("Mama anrufen übernächsten Montag um 9", "!None", None),
        ("打电话五十分钟后", "!None", None),
        ("开会三月五日9点", "!None", None),
        ("電話再来週の月曜9時", "!None", None),
        ("in 2 weeks on monday call mum", "!None", None),
        ("every day 2 pills at 9", "daily at 09:00", "2 pills"),
        (
            "every day 2 pills",
            "!'every day 2 pills' can mean different times. Write 'every day at 02:00 pills' or",
            None,
        ),
        ("tomorrow 9 James", "Sat 28 Feb 09:00", "James"),
        ("lunes 9 las llaves", "Mon 02 Mar 09:00", "las llaves"),
        ("tomorrow 0 call", "Sat 28 Feb 00:00", "call"),
        ("march 14 Thomas at 9", "Sat 14 Mar 09:00", "Thomas"),
        ("tomorrow 10 km run", "!'tomorrow 10 km run' has no time of day", None),
        ("明天2个鸡蛋", "!'明天2个鸡蛋' has no time of day", None),
        ("um 9 Uhr 2 Eier", "Sat 28 Feb 09:00", "2 Eier"),
        ("tomorrow 9 y", "Sat 28 Feb 09:00", "y"),
        ("tomorrow 9 y 10 x", "!None", None),
        ("1/12 at 9 y", "!'1/12 at 9' can mean different times.", None),
        ("tomorrow 9 call mum", "Sat 28 Feb 09:00", "call mum"),
        ("tomorrow 2: egg", "Sat 28 Feb 02:00", "egg"),
        (
            "morgen 3 Eier",
            "!'morgen 3 Eier' can mean different times. Write 'tomorrow at 03:00 E",
            None,
        ),
        ("march 4 miles at 9", "!'march 4 at 9' can mean different times. Write '4 March at", None),
        ("march 4 call mum at 9", "Wed 04 Mar 09:00", "call mum"),
        ("in 3 weeks' time at 9 x", "Fri 20 Mar 09:00", "x"),
        ("mon call mum at 9", "!'mon call mum at 9' can mean different times. Write 'Monday", None),
        ("mon ami à 9h", "!'mon ami à 9h' can mean", None),
        (
            "call mum tomorow at 18",
            "!I do not know the day 'tomorow'. Did you mean 'tomorrow'?",
            None,
        ),
        ("x wensday at 9", "!I do not know the day 'wensday'", None),
        ("thurdsay x at 9", "!I do not know the day 'thurdsay'", None),
        ("um 9 Frida anrufen", "Sat 28 Feb 09:00", "Frida anrufen"),
        ("Domino at 9", "Sat 28 Feb 09:00", "Domino"),
        ("damien at 9", "Sat 28 Feb 09:00", "damien"),
        ("montage at 9 of the domain", "!None", None),
        ("2026-02-30 pay at 9", "!There is no such date or time as '2026-02-30'.", None),
        ("купить хлеб завтра в 18:00", "!I read English, German, French", None),
        ("every day at 9 for 5 days stretch", "!I cannot read when 'every day at 9' should", None),
        ("every day at 9 for a walk", "daily at 09:00", "for a walk"),
        ("jeden Tag um 9 ab 1. März gießen", "!I cannot read when", None),
        ("every 2 hours from 9am drink", "!I cannot read when", None),
        ("明天9点一起吃饭", "Sat 28 Feb 09:00", "一起吃饭"),
        ("update to version 3.2 at 9", "!None", None),
        ("morgen mittag um 1 essen", "!'morgen' has no time of day", None),
        ("明日2時間勉強", "!'明日2時間勉強' has no time of day", None),
        ("call Sam at 9", "Sat 28 Feb 09:00", "call Sam"),
        ("um 9 Uhr 30 Minuten laufen", "Sat 28 Feb 09:00", "30 Minuten laufen"),
        ("drink water at 8 every evening", "daily at 20:00", "drink water"),
        ("明日9時に母に電話", "Sat 28 Feb 09:00", "母に電話"),
        ("给妈妈打电话明天9点", "Sat 28 Feb 09:00", "给妈妈打电话"),
        ("tomorrow 5 minutes of yoga", "!'tomorrow 5 minutes of yoga' has no time of day", None),
        ("18:30 tell Ben to practise daily", "!'18:30 tell Ben to practise daily' can mean", None),
        ("monday call about friday at 9", "!'monday' has no time of day", None),
        ("take pills at 8am and 8pm", "!None", None),
        ("call every first monday at 9", "!None", None),
        ("call mum 30 february at 9", "!None", None),
        ("boil eggs for 5 minutes", "!None", None),
    ],
)
def test_a_sentence_keeps_what_is_no_time(text: str, means: str, rest: str | None) -> None:
    """U-010, U-011: what may belong to the text is not taken for a time."""
    said = in_a_sentence(text)
    assert said[1] == rest
    assert said[0].startswith(means)


ALIKE = (
    *("at 9", "9am", "9:30pm", "tomorrow 9", "monday 8", "in two hours", "every monday at 8"),
    *("every other friday at 9", "1.12. um 9", "demain à 9h", "mañana a las 9", "domani alle 9"),
    *("明天9点", "明日9時", "every 2 hours", "mon,thu 08:00"),
)


async def test_the_chat_and_the_tool_read_a_time_alike(tmp_path: Path, model: ModelServer) -> None:
    """U-010: the same schedule and the same due time."""
    async with open_house(tmp_path, model.url, clock=HeldClock(), prompts=PROMPTS) as house:
        async with house.working():
            for number, form in enumerate(ALIKE):
                assert "I'll remind you " in await house.ask(f"/remind {form} tea"), form
                use = Use("task", {"action": "add", "content": "tea", "at": form})
                model.script(Calls((use,)), Text(f"done {number}"))
                await house.ask("remind me")
        tasks = await house.stores.tasks.listed(f"person:{ANN}")
        made = [(task.schedule, task.next_due) for task in tasks]
        assert len(made) == 2 * len(ALIKE)
        assert made[::2] == made[1::2]


@pytest.mark.parametrize(
    ("line", "answer"),
    [
        ("fri 09:00 x", "I'll remind you on Friday at 09:00, once: x"),
        ("x every other friday at 9", "I'll remind you on Friday at 09:00, every other Friday: x"),
        ("monday at 8 x", "I'll remind you on 11 May at 08:00, once: x"),
        ("me tomorrow at 9 to call mum", "I'll remind you tomorrow at 09:00, once: call mum"),
        ("18:30 tell me to rest", "I'll remind you today at 18:30, once: tell me to rest"),
        ("me to call mum tomorrow at 9", "I'll remind you tomorrow at 09:00, once: call mum"),
        (
            "monthly 31 9:00 x",
            "I'll remind you on 31 May at 09:00, every month on day 31: x\nIn a m",
        ),
        ("2027-01-02 9:00 x", "I'll remind you on 2 January 2027 at 09:00, once: x"),
        ("2026-05-05T09:00-05:00 x", "I'll remind you tomorrow at 16:00 CEST, once: x"),
        ("mon,thu 08:00 x", "I'll remind you on Thursday at 08:00, every Monday and Thursday: x"),
        ("mon-fri 08:00 x", "I'll remind you tomorrow at 08:00, every weekday: x"),
        ("every 2 hours x", "I'll remind you today at 16:00, every 2 hours: x"),
        (
            "1/12 at 9 x",
            "'1/12 at 9' can mean different times. Write '1 December at 09:00' or '12 J",
        ),
        ("x on friday", "'on friday' has no time of day. Write for example 'Friday at 9'."),
        ("18:30 tell Ben to leave tomorrow", "'18:30 tell Ben to leave tomorrow' can mean diff"),
        (
            "18:30 friday drinks",
            "'18:30 friday' can mean different times. Write 'Friday at 18:30' or",
        ),
        ("buy x", "I need a time and a text. Write for example:\n- `/remind tomorrow at 9 "),
        ("at 25 x", "There is no such date or time as 'at 25'. Write for example:\n- `/rem"),
        ("2027-02-30 x", "There is no such date or time as '2027-02-30'. Write"),
        ("tomorow at 9 x", "I do not know the day 'tomorow'. Did you mean 'tomorrow'? Write"),
        ("завтра в 9 x", "I read English, German, French, Spanish, Italian, Chinese and Ja"),
        ("yesterday 9:00 x", "I cannot read 'yesterday 9:00' as a time. Write"),
        ("call at 9 with Ann", "I read a time at the beginning or at the end, as in 'at 9 call w"),
        ("miércols a las 9 x", "I do not know the day 'miércols'. Did you mean 'miércoles'? W"),
        ("in zwei Stundn Ofen", "I cannot read 'in zwei Stundn' as a time. Write"),
        ("in 60 seconds tea", "I cannot read 'in 60 seconds' as a time. Write"),
        ("5 min tea", "I cannot read '5 min' as a time. Write"),
        ("next week x", "I cannot read 'next week' as a time. Write"),
        ("tea every 30 seconds", "I cannot read 'every 30 seconds' as a time. Write"),
        (f"x{' 9' * 500_000}", "I need a time and a text."),
        (f"at 9 {'x' * 1_000_000}", "content has 1000000 characters"),
    ],
)
async def test_the_answer_says_when_and_how_often_in_words(
    tmp_path: Path, line: str, answer: str
) -> None:
    """U-010, U-011, T-062: on a Monday at 14:00; the day in words, no id, no seconds."""
    async with house_at_work(tmp_path, None, clock=HeldClock()) as house:
        said = await house.ask(f"/remind {line}")
        assert said.startswith(answer), said
        assert "task_" not in said
