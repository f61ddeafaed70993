"""Words of schedules by language: names of scenes and of shorter parts, units of time, fields."""

from __future__ import annotations

_SCENES = {
    "English": "scene",
    "German": "szene",
    "French": "scène scene",
    "Spanish": "escena",
    "Portuguese": "cena",
    "Italian": "scena",
    "Russian": "Сцена сцена",
    "Chinese": "场景 場景",
    "Japanese": "シーン",
    "Korean": "장면 씬",
}
_SCENE_SUFFIXES = {"Chinese": "场景 場景 场 場 幕"}  # behind 第 and a number
_SHOTS = {  # less clear than a scene
    "English": (
        "shot clip part segment beat prompt section chapter act sequence step keyframe take panel"
        " slide image visual video"
    ),
    "German": "einstellung aufnahme bild",
    "French": "plan",
    "Spanish": "toma plano",
    "Portuguese": "tomada",
    "Italian": "inquadratura",
    "Russian": "Кадр кадр План план",
    "Chinese": "镜头 鏡頭 分镜",
    "Japanese": "カット ショット",
    "Korean": "샷 컷",
}
_NUMBERS = {
    "English": "one two three four five six seven eight nine ten",
    "German": "eins zwei drei vier fünf sechs sieben acht neun zehn",
    "French": "un deux trois quatre cinq six sept huit neuf dix",
    "Spanish": "uno dos tres cuatro cinco seis siete ocho nueve diez",
    "Portuguese": "um dois três quatro cinco seis sete oito nove dez",
    "Italian": "uno due tre quattro cinque sei sette otto nove dieci",
    "Russian": "один два три четыре пять шесть семь восемь девять десять",
    "Korean": "하나 둘 셋 넷 다섯 여섯 일곱 여덟 아홉 열",
}
_PLACES = {  # in a list
    "English": "first second third fourth fifth sixth seventh eighth ninth tenth",
    "German": "erstens zweitens drittens viertens fünftens",
    "French": "premièrement deuxièmement troisièmement quatrièmement cinquièmement",
    "Spanish": "primero segundo tercero cuarto quinto",
    "Portuguese": "primeiro segundo terceiro quarto quinto",
    "Italian": "primo secondo terzo quarto quinto",
    "Russian": "первый второй третий четвёртый пятый",
    "Korean": "첫째 둘째 셋째 넷째 다섯째",
}
_SECONDS = {
    "English": "seconds second secs sec",
    "German": "sekunden sek",
    "French": "secondes seconde",
    "Spanish": "segundos segundo",
    "Russian": "секунды секунда секунд сек",
    "Chinese": "秒",
    "Korean": "초",
}
_MINUTES = {
    "English": "minutes minute mins min",
    "German": "minuten",
    "Spanish": "minutos minuto",
    "Russian": "минуты минута минут мин",
    "Chinese": "分",
    "Korean": "분",
}
_RANGES = {"English": "to", "Chinese": "至 到", "Japanese": "から", "Korean": "부터"}
_LENGTHS = {  # fields whose value is a time
    "English": (
        "time time_range timerange time_code timecode time_stamp timestamp timestamps timing"
        " duration length runtime"
    ),
    "German": "dauer",
    "French": "durée duree",
    "Spanish": "duración duracion",
    "Russian": "длительность Длительность",
    "Chinese": "时间 時間 时长 時長 持续时间",
    "Japanese": "長さ",
    "Korean": "시간 길이",
}
_NEGATIVES = {
    "English": "negative_prompt negativer_prompt negatives_prompt",
    "French": "prompt_négatif prompt_negatif",
    "Spanish": "prompt_negativo",
    "Chinese": "负面提示词 負面提示詞 反向提示词",
    "Japanese": "ネガティブプロンプト",
    "Korean": "네거티브_프롬프트 부정_프롬프트",
}


def _any(table: dict[str, str]) -> str:
    """A regular expression of every word of a table, the longest first."""
    words = {word for row in table.values() for word in row.split()}
    return "|".join(sorted(words, key=lambda word: (-len(word), word))).replace("_", " ")


SCENES = _any(_SCENES)
SCENE_SUFFIXES = _any(_SCENE_SUFFIXES)
SHOTS = _any(_SHOTS)
NUMBERS = _any(_NUMBERS)
COUNTED = [row.split() for row in (*_NUMBERS.values(), *_PLACES.values())]
FIRSTS = "|".join(sorted({row[0] for row in COUNTED}))
SECONDS = _any(_SECONDS)
MINUTES = _any(_MINUTES)
RANGES = _any(_RANGES)
LENGTHS = _any(_LENGTHS)
NEGATIVES = _any(_NEGATIVES)
